// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/selector.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::unique_ptr<Selector> Make(SelectorKind kind, double exponent = 0.6) {
  return MakeSelector({.kind = kind, .exponent = exponent});
}

// Returns the slots in the order in which they are selected and removed.
std::vector<uint32_t> Drain(Selector& selector, size_t size) {
  std::vector<uint32_t> order;
  CounterRandom random(1, 1);
  for (size_t i = 0; i < size; ++i) {
    order.push_back(selector.Select(random).slot);
    selector.Remove(order.back());
  }
  return order;
}

TEST(Selector, FifoAndLifoFollowTheOrderOfInsertion) {
  for (const bool fifo : {true, false}) {
    const auto selector = Make(fifo ? SelectorKind::kFifo : SelectorKind::kLifo);
    for (const uint32_t slot : {4u, 0u, 9u, 2u}) selector->Insert(slot, 1);
    selector->Update(9, 100);
    selector->Remove(0);
    selector->Insert(0, 1);
    EXPECT_EQ(Drain(*selector, 4),
              fifo ? (std::vector<uint32_t>{4, 9, 2, 0}) : (std::vector<uint32_t>{0, 2, 9, 4}));
    EXPECT_EQ(selector->mass(), 0);
  }
}

TEST(Selector, LowestAndHighestFollowThePriorityAndThenTheAge) {
  const auto lowest = Make(SelectorKind::kLowest), highest = Make(SelectorKind::kHighest);
  for (Selector* selector : {lowest.get(), highest.get()}) {
    selector->Insert(7, 2);
    selector->Insert(3, 5);
    selector->Insert(8, 2);
    selector->Insert(1, 9);
    selector->Insert(5, 5);
    selector->Update(1, 2);
    selector->Remove(3);
  }
  EXPECT_EQ(Drain(*lowest, 4), (std::vector<uint32_t>{7, 8, 1, 5}));
  EXPECT_EQ(Drain(*highest, 4), (std::vector<uint32_t>{5, 7, 8, 1}));
}

TEST(Selector, ProbabilitiesEqualTheFormulaTo12Digits) {
  for (const double exponent : {0.0, 0.4, 0.6, 1.0, 2.0}) {
    const auto selector = Make(SelectorKind::kPrioritized, exponent);
    CounterRandom random(5, 5);
    std::vector<double> priorities(5000);
    double sum = 0;
    for (uint32_t i = 0; i < priorities.size(); ++i) {
      priorities[i] = std::exp(10 * random.UniformDouble() - 5);
      selector->Insert(i, 1);
      selector->Update(i, priorities[i]);
      sum += std::pow(priorities[i], exponent);
    }
    EXPECT_NEAR(selector->mass() / sum, 1, 1e-12);
    for (int i = 0; i < 1000; ++i) {
      const Selector::Selection selection = selector->Select(random);
      const double expected = std::pow(priorities[selection.slot], exponent) / sum;
      EXPECT_NEAR(selection.probability / expected, 1, 1e-12) << "exponent " << exponent;
    }
  }
}

// The statistic's mean is the number of slots - 1 and its deviation sqrt(2 (slots - 1)); six deviations are
// enough, and the draws are always the same.
void ExpectDistribution(Selector& selector, const std::vector<double>& probabilities) {
  constexpr int kDraws = 1'000'000;
  std::vector<int> counts(probabilities.size());
  for (int draw = 0; draw < kDraws; ++draw) {
    CounterRandom random(11, static_cast<uint64_t>(draw));
    ++counts[selector.Select(random).slot];
  }
  double chi_square = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const double expected = probabilities[i] * kDraws;
    if (expected == 0) {
      EXPECT_EQ(counts[i], 0);
    } else {
      chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
  }
  const double freedom = static_cast<double>(counts.size()) - 1;
  EXPECT_LT(chi_square, freedom + 6 * std::sqrt(2 * freedom));
  EXPECT_GT(chi_square, freedom - 6 * std::sqrt(2 * freedom));
}

TEST(Selector, PrioritizedDrawsFollowTheirProbabilities) {
  const auto selector = Make(SelectorKind::kPrioritized, 0.5);
  std::vector<double> weights(300);
  double sum = 0;
  for (uint32_t i = 0; i < weights.size(); ++i) {
    selector->Insert(i, 1.0 + i);
    weights[i] = std::sqrt(1.0 + i);
  }
  for (uint32_t i = 0; i < 300; i += 3) {  // some leave, one of them comes back
    selector->Remove(i);
    weights[i] = 0;
  }
  selector->Insert(3, 400);
  weights[3] = 20;
  for (const double weight : weights) sum += weight;
  for (double& weight : weights) weight /= sum;
  ExpectDistribution(*selector, weights);
}

TEST(Selector, UniformDrawsFollowTheirProbabilities) {
  const auto selector = Make(SelectorKind::kUniform);
  for (uint32_t i = 0; i < 200; ++i) selector->Insert(i, i);
  selector->Remove(0);
  selector->Remove(199);
  selector->Remove(77);
  std::vector<double> probabilities(200, 1.0 / 197);
  probabilities[0] = probabilities[199] = probabilities[77] = 0;
  ExpectDistribution(*selector, probabilities);
}

TEST(Selector, TheSameSeedGivesTheSameDraws) {
  std::vector<uint32_t> first;
  for (int run = 0; run < 2; ++run) {
    const auto selector = Make(SelectorKind::kPrioritized);
    for (uint32_t i = 0; i < 100; ++i) selector->Insert(i, i);
    std::vector<uint32_t> draws;
    for (uint64_t draw = 0; draw < 1000; ++draw) {
      CounterRandom random(3, draw);
      draws.push_back(selector->Select(random).slot);
    }
    if (run == 0) first = draws;
    EXPECT_EQ(draws, first);
  }
}

TEST(Selector, ItemsOfPriorityZeroAreDrawnOnlyWhileAllAreZero) {
  const auto selector = Make(SelectorKind::kPrioritized);
  for (uint32_t i = 0; i < 4; ++i) selector->Insert(i, 0);
  EXPECT_EQ(selector->mass(), 0);
  std::map<uint32_t, int> counts;
  CounterRandom random(1, 1);
  for (int i = 0; i < 4000; ++i) {
    const Selector::Selection selection = selector->Select(random);
    EXPECT_EQ(selection.probability, 0.25);
    ++counts[selection.slot];
  }
  EXPECT_EQ(counts.size(), 4u);
  selector->Update(2, 1e-300);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(selector->Select(random).slot, 2u);
}

TEST(CheckPriority, RefusesWhatWouldSpoilSums) {
  const SelectorOptions prioritized = {.kind = SelectorKind::kPrioritized, .exponent = 2};
  for (const double wrong : {-1.0, -kInfinity, kInfinity, std::nan("")}) {
    for (const SelectorKind kind :
         {SelectorKind::kFifo, SelectorKind::kUniform, SelectorKind::kPrioritized}) {
      EXPECT_THAT(CheckPriority({.kind = kind}, wrong),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("finite and not negative")));
    }
  }
  EXPECT_THAT(CheckPriority(prioritized, 1e200),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("2^990")));
  EXPECT_THAT(CheckPriority({.kind = SelectorKind::kUniform}, 1e300), IsOk());
  EXPECT_THAT(CheckPriority(prioritized, 0), IsOk());
  EXPECT_THAT(CheckPriority(prioritized, 1e100), IsOk());
}

TEST(CheckSelector, RefusesExponentsOutOfRange) {
  for (const double wrong : {-0.1, 17.0, kInfinity, std::nan("")}) {
    EXPECT_THAT(CheckSelector({.kind = SelectorKind::kPrioritized, .exponent = wrong}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("[0, 16]")));
  }
  EXPECT_THAT(CheckSelector({.kind = static_cast<SelectorKind>(99)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("unknown selector")));
}

TEST(ParseSelector, KnowsAllNamesAndListsThem) {
  for (uint8_t kind = 0; kind < 6; ++kind) {
    const auto expected = static_cast<SelectorKind>(kind);
    EXPECT_EQ(ParseSelector(Name(expected)).value_or(SelectorKind::kFifo), expected);
  }
  EXPECT_THAT(ParseSelector("heap"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fifo, lifo, uniform")));
}

}  // namespace
}  // namespace tandem::replay
