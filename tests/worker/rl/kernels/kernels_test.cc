// SPDX-License-Identifier: Apache-2.0
// Compares the estimators with the values that rlax's tests publish (vtrace_test.py, multistep_test.py of
// google-deepmind/rlax), with plain sums, and with linear solutions on a chain of five states.

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rl/kernels/gae.h"
#include "worker/rl/kernels/n_step.h"
#include "worker/rl/kernels/vtrace.h"

namespace tandem::rl {
namespace {

using Rows = std::vector<std::vector<double>>;

// The rows of published tests are streams; a Rollout is time-major.
std::vector<float> TimeMajor(const Rows& rows) {
  std::vector<float> values;
  for (size_t t = 0; t < rows[0].size(); ++t)
    for (const auto& row : rows) values.push_back(static_cast<float>(row[t]));
  return values;
}

struct Data {
  std::vector<float> rewards, discounts, values, next_values;
  std::vector<uint8_t> ends;
  size_t streams = 0;

  // `values` of n + 1 steps, of which the last one follows the rollout.
  Data(const Rows& r, const Rows& d, const Rows& v) : streams(r.size()) {
    rewards = TimeMajor(r);
    discounts = TimeMajor(d);
    Rows before = v, after = v;
    for (auto& row : before) row.pop_back();
    for (auto& row : after) row.erase(row.begin());
    values = TimeMajor(before);
    next_values = TimeMajor(after);
    ends.assign(rewards.size(), 0);
  }
  Rollout rollout() const {
    return {.steps = rewards.size() / streams,
            .streams = streams,
            .rewards = rewards,
            .discounts = discounts,
            .values = values,
            .next_values = next_values,
            .ends = ends};
  }
};

void ExpectNear(const std::vector<float>& got, const Rows& wanted, double relative, double absolute = 1e-6) {
  const std::vector<float> flat = TimeMajor(wanted);
  ASSERT_EQ(got.size(), flat.size());
  for (size_t i = 0; i < flat.size(); ++i)
    EXPECT_NEAR(got[i], flat[i], absolute + relative * std::abs(static_cast<double>(flat[i]))) << i;
}

TEST(VTraceTest, EqualsThePublishedValues) {
  const std::vector<std::vector<std::array<double, 2>>> behaviour = {
      {{8.9, 0.7}, {5.0, 1.0}, {0.6, 0.1}, {-0.9, -0.1}}, {{0.3, -5.0}, {1.0, -8.0}, {0.3, 1.7}, {4.7, 3.3}}};
  const std::vector<std::vector<std::array<double, 2>>> target = {
      {{0.4, 0.5}, {9.2, 8.8}, {0.7, 4.4}, {7.9, 1.4}}, {{1.0, 0.9}, {1.0, -1.0}, {-4.3, 8.7}, {0.8, 0.3}}};
  const std::vector<std::vector<int>> actions = {{0, 1, 0, 0}, {1, 0, 0, 1}};
  Rows ratios(2, std::vector<double>(4));
  for (size_t s = 0; s < 2; ++s) {
    for (size_t t = 0; t < 4; ++t) {
      const auto probability = [&](const std::array<double, 2>& logits) {
        return std::exp(logits[actions[s][t]]) / (std::exp(logits[0]) + std::exp(logits[1]));
      };
      ratios[s][t] = probability(target[s][t]) / probability(behaviour[s][t]);
    }
  }
  const Data data({{-1.3, -1.3, 2.3, 42.0}, {1.3, 5.3, -3.3, -5.0}},
                  {{0., 0.89, 0.85, 0.99}, {0.88, 1., 0.83, 0.95}},
                  {{2.1, 1.1, -3.1, 0.0, 8.4}, {3.1, 0.1, -1.1, 7.4, -1.2}});
  std::vector<float> errors(8), advantages(8);
  VTrace(data.rollout(), TimeMajor(ratios), {}, absl::MakeSpan(errors), absl::MakeSpan(advantages));
  ExpectNear(errors,
             {{-1.6155143, -3.4973226, 1.8670533, 50.316002}, {1.4662437, 3.6116405, -8.3327293e-5, -13.54}},
             1e-4);
  ExpectNear(advantages,
             {{-1.6155143, -3.4973226, 1.8670534, 50.316002}, {1.4662433, 3.6116405, -8.3369283e-5, -13.54}},
             1e-4);
}

// The states of the chain (worker/rl/envs/chain.cc), where action 1 goes right. Returns the values of a
// policy that goes right with probability `right`, by iterating the linear equations.
std::array<double, 5> ChainValues(double right, double gamma) {
  std::array<double, 5> values = {};
  for (int sweep = 0; sweep < 20000; ++sweep) {
    for (int s = 0; s < 5; ++s) {
      const double up = s == 4 ? 1.0 : gamma * values[s + 1], down = s == 0 ? 0.0 : gamma * values[s - 1];
      values[s] = right * up + (1 - right) * down;
    }
  }
  return values;
}

// The expected V-trace error of each state, when trajectories of three steps come from a policy that goes
// right with probability `mu`: the mean over all of them, weighted with their probabilities.
std::array<double, 5> ExpectedErrors(const std::array<double, 5>& values, double pi, double mu, double gamma,
                                     double clip) {
  std::array<double, 5> expected = {};
  for (int start = 0; start < 5; ++start) {
    for (int path = 0; path < 8; ++path) {
      Data data({{0}}, {{0}}, {{0, 0}});
      data.rewards.clear();
      data.discounts.clear();
      data.values.clear();
      data.next_values.clear();
      std::vector<float> ratios;
      double probability = 1;
      int state = start;
      for (int t = 0; t < 3; ++t) {
        const bool right = (path >> t & 1) != 0;
        probability *= right ? mu : 1 - mu;
        ratios.push_back(static_cast<float>(right ? pi / mu : (1 - pi) / (1 - mu)));
        data.values.push_back(static_cast<float>(values[state]));
        state += right ? 1 : -1;
        const bool terminated = state < 0 || state > 4;
        data.rewards.push_back(state > 4 ? 1.0f : 0.0f);
        data.discounts.push_back(terminated ? 0.0f : static_cast<float>(gamma));
        data.next_values.push_back(terminated ? 0.0f : static_cast<float>(values[state]));
        if (terminated) {
          for (++t; t < 3; ++t)
            probability *= (path >> t & 1) != 0 ? mu : 1 - mu;  // the other paths are the same
        }
      }
      data.ends.assign(data.rewards.size(), 0);
      data.ends.back() = 1;
      std::vector<float> errors(data.rewards.size()), advantages(errors.size());
      VTrace(data.rollout(), ratios, {.clip_rho = clip, .clip_c = clip}, absl::MakeSpan(errors),
             absl::MakeSpan(advantages));
      expected[start] += probability * errors[0];
    }
  }
  return expected;
}

// Without clipping the fixed point is the value of the target policy; with a limit of 1 it is that of the
// policy which is proportional to min(mu, pi).
TEST(VTraceTest, ItsFixedPointOnTheChainIsTheLinearSolution) {
  constexpr double kPi = 0.7, kMu = 0.4, kGamma = 0.9;
  const double infinite = std::numeric_limits<double>::infinity();
  const double clipped_right = std::min(kPi, kMu) / (std::min(kPi, kMu) + std::min(1 - kPi, 1 - kMu));
  for (const double error : ExpectedErrors(ChainValues(kPi, kGamma), kPi, kMu, kGamma, infinite))
    EXPECT_NEAR(error, 0, 1e-6);
  for (const double error : ExpectedErrors(ChainValues(clipped_right, kGamma), kPi, kMu, kGamma, 1.0))
    EXPECT_NEAR(error, 0, 1e-6);
  double largest = 0;  // and the other's values are no fixed point
  for (const double error : ExpectedErrors(ChainValues(kPi, kGamma), kPi, kMu, kGamma, 1.0))
    largest = std::max(largest, std::abs(error));
  EXPECT_GT(largest, 0.01);
}

TEST(GaeTest, EqualsThePublishedValues) {
  const Data data({{0., 0., 1., 0., -0.5}, {0., 0., 0., 0., 1.}},
                  {{0.99, 0.99, 0.99, 0.99, 0.99}, {0.9, 0.9, 0.9, 0.0, 0.9}},
                  {{1., 4., -3., -2., -1., -1.}, {-3., -2., -1., 0.0, 5., -1.}});
  std::vector<float> advantages(10);
  // They are published with three to six digits, and compared there to 1e-3, too.
  GeneralizedAdvantages(data.rollout(), 1.0, absl::MakeSpan(advantages));
  ExpectNear(advantages, {{-1.45118, -4.4557, 2.5396, 0.5249, -0.49}, {3., 2., 1., 0., -4.9}}, 0, 1e-3);
  GeneralizedAdvantages(data.rollout(), 0.7, absl::MakeSpan(advantages));
  ExpectNear(advantages, {{-0.676979, -5.248167, 2.4846, 0.6704, -0.49}, {2.2899, 1.73, 1., 0., -4.9}}, 0,
             1e-3);
  GeneralizedAdvantages(data.rollout(), 0.4, absl::MakeSpan(advantages));
  ExpectNear(advantages, {{0.56731, -6.042, 2.3431, 0.815, -0.49}, {1.725, 1.46, 1., 0., -4.9}}, 0, 1e-3);
}

TEST(GaeTest, AnEpisodeThatIsCutOffBootstrapsAndDoesNotSeeTheNextOne) {
  Data data({{1, 1, 1}}, {{0.5, 0.5, 0.5}}, {{0, 0, 0, 0}});
  data.next_values = {4, 8, 16};
  data.ends = {0, 1, 0};
  std::vector<float> advantages(3);
  GeneralizedAdvantages(data.rollout(), 1.0, absl::MakeSpan(advantages));
  EXPECT_THAT(advantages, ::testing::ElementsAre(1 + 0.5 * 4 + 0.5 * 5, 1 + 0.5 * 8, 1 + 0.5 * 16));
}

TEST(NStepReturnsTest, EqualsThePublishedValues) {
  const Data data({{1.0, 0.0, -1.0, 0.0, 1.0}, {0.5, 0.8, -0.7, 0.0, 2.1}},
                  {{0.5, 0.9, 1.0, 0.5, 0.8}, {0.9, 0.5, 0.3, 0.8, 0.7}},
                  {{0, 3.0, 1.0, 5.0, -5.0, 3.0}, {0, -1.7, 1.2, 2.3, 2.2, 2.7}});
  std::vector<float> returns(10);
  NStepReturns(data.rollout(), 3, absl::MakeSpan(returns));
  ExpectNear(returns, {{2.8, -3.15, 0.7, 1.7, 3.4}, {1.2155, 0.714, 0.2576, 3.192, 3.99}}, 1e-5);
  for (const size_t n : {5, 7}) {
    NStepReturns(data.rollout(), n, absl::MakeSpan(returns));
    ExpectNear(returns, {{1.315, 0.63, 0.7, 1.7, 3.4}, {1.33592, 0.9288, 0.2576, 3.192, 3.99}}, 1e-5);
  }
}

// Every step of a stream of random episodes begins one transition; its reward, discount and next observation
// are those of a plain sum.
TEST(NStepAdderTest, EveryStepBeginsOneTransitionAndTailsAreShort) {
  constexpr size_t kN = 3;
  constexpr double kGamma = 0.9;
  struct Step {
    float observation, reward, next;
    bool terminated, truncated;
  };
  std::vector<Step> steps;
  CounterRandom random(7, 7);
  for (int i = 0; i < 500; ++i) {
    const uint64_t end = random.Below(10);
    steps.push_back({static_cast<float>(i), static_cast<float>(random.Below(5)), static_cast<float>(i) + 0.5f,
                     end == 0 || end == 1, end == 1 || end == 2});
  }
  steps.back().terminated = true;
  NStepAdder adder(kN, kGamma);
  size_t next = 0;
  for (const Step& step : steps) {
    const float action = step.observation + 1000;
    adder.Add({&step.observation, 1}, {&action, 1}, step.reward, {&step.next, 1}, step.terminated,
              step.truncated, [&](const NStepTransition& transition) {
                double sum = 0, factor = 1;
                size_t last = next;
                for (;; ++last) {
                  sum += factor * steps[last].reward;
                  factor *= kGamma;
                  if (last + 1 == next + kN || steps[last].terminated || steps[last].truncated) break;
                }
                EXPECT_EQ(transition.observation[0], static_cast<float>(next));
                EXPECT_EQ(transition.action[0], static_cast<float>(next) + 1000);
                EXPECT_FLOAT_EQ(transition.reward, static_cast<float>(sum));
                EXPECT_FLOAT_EQ(transition.discount,
                                steps[last].terminated ? 0.0f : static_cast<float>(factor));
                EXPECT_EQ(transition.next_observation[0], steps[last].next);
                ++next;
              });
  }
  EXPECT_EQ(next, steps.size());
}

}  // namespace
}  // namespace tandem::rl
