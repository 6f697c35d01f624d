// SPDX-License-Identifier: Apache-2.0
#include "worker/evaluation/metrics.h"

#include <cmath>
#include <limits>

#include "base/random.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

// The definition of AUC, in O(n^2).
double ModelAuc(const std::vector<float>& labels, const std::vector<float>& scores) {
  double right = 0;
  double pairs = 0;
  for (size_t i = 0; i < labels.size(); ++i) {
    for (size_t j = 0; j < labels.size(); ++j) {
      if (labels[i] != 1 || labels[j] != 0) continue;
      pairs += 1;
      right += scores[i] > scores[j] ? 1 : scores[i] == scores[j] ? 0.5 : 0;
    }
  }
  return right / pairs;
}

TEST(Auc, AgreesWithItsDefinition) {
  CounterRandom random(1, 1);
  for (int round = 0; round < 300; ++round) {
    const uint64_t n = 2 + random.Below(80);
    const uint64_t levels = 1 + random.Below(20);  // few: many ties
    std::vector<float> labels = {0, 1};
    std::vector<float> scores = {0.0f, -0.0f};
    for (uint64_t i = 2; i < n; ++i) {
      labels.push_back(static_cast<float>(random.Below(2)));
      scores.push_back((static_cast<float>(random.Below(levels)) - 5) * 0.3f);
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const double auc, Auc(labels, scores));
    EXPECT_NEAR(auc, ModelAuc(labels, scores), 1e-12);
  }
}

TEST(Auc, OrdersInfinitiesAndSigns) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(*Auc({0, 0, 1, 1}, {-inf, -1e-30f, 1e-30f, inf}), 1);
  EXPECT_EQ(*Auc({1, 1, 0, 0}, {-inf, -1e-30f, 1e-30f, inf}), 0);
  EXPECT_EQ(*Auc({1, 0}, {-0.0f, 0.0f}), 0.5);
  EXPECT_EQ(*Auc({1, 0, 1, 0}, {-2, -1, -1, -3}), 0.625);
}

TEST(Auc, SaysWhyItCannotBeComputed) {
  EXPECT_THAT(Auc({1, 1, 1}, {1, 2, 3}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("3 positive and 0 negative")));
  EXPECT_THAT(Auc({}, {}), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_THAT(Auc({1, 0}, {1, std::nanf("")}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("example 1")));
}

TEST(LogLoss, AgreesBetweenProbabilitiesAndLogits) {
  CounterRandom random(2, 1);
  std::vector<float> labels;
  std::vector<float> logits;
  std::vector<float> probabilities;
  double expected = 0;
  for (int i = 0; i < 1000; ++i) {
    labels.push_back(static_cast<float>(random.Below(2)));
    logits.push_back(static_cast<float>(random.Normal() * 3));
    const double p = 1 / (1 + std::exp(-static_cast<double>(logits[i])));
    probabilities.push_back(static_cast<float>(p));
    expected -= labels[i] == 1 ? std::log(p) : std::log(1 - p);
  }
  EXPECT_NEAR(LogLossFromLogits(labels, logits), expected / 1000, 1e-9);
  EXPECT_NEAR(LogLoss(labels, probabilities), expected / 1000, 1e-5);
}

TEST(LogLoss, IsClippedForSurePredictions) {
  const double worst = -std::log(1e-7);
  EXPECT_NEAR(LogLoss({1}, {0}), worst, 1e-9);
  EXPECT_NEAR(LogLossFromLogits({1}, {-1000}), worst, 1e-9);
  EXPECT_NEAR(LogLossFromLogits({0}, {1000}), worst, 1e-9);
  EXPECT_NEAR(LogLossFromLogits({0}, {-1000}), 1e-7, 1e-9);
  EXPECT_NEAR(LogLoss({0}, {0}), 1e-7, 1e-9);
  EXPECT_NEAR(LogLossFromLogits({1}, {0}), std::log(2), 1e-9);
  EXPECT_EQ(LogLoss({}, {}), 0);
}

TEST(LogLoss, OfAConstantIsThatOfAllExamples) {
  EXPECT_NEAR(LogLossOfConstant(0.3, 2, 5), LogLoss({1, 1, 0, 0, 0}, {0.3f, 0.3f, 0.3f, 0.3f, 0.3f}), 1e-7);
  EXPECT_EQ(LogLossOfConstant(0.3, 0, 0), 0);
}

TEST(Sigmoid, DoesNotOverflow) {
  EXPECT_EQ(Sigmoid(0), 0.5);
  EXPECT_EQ(Sigmoid(1e6), 1);
  EXPECT_EQ(Sigmoid(-1e6), 0);
  EXPECT_NEAR(Sigmoid(-2) + Sigmoid(2), 1, 1e-15);
}

TEST(ScoredExamples, MergedOverWorkersAreAsOfOne) {
  CounterRandom random(3, 1);
  ScoredExamples whole;
  std::vector<ScoredExamples> workers(3);
  for (int i = 0; i < 500; ++i) {
    const float label = static_cast<float>(random.Below(2));
    const float logit = static_cast<float>(random.Below(50)) * 0.1f - 2 + label;
    whole.Add({label}, {logit});
    workers[random.Below(2)].Add({label}, {logit});  // worker 2 has no examples
  }
  ScoredExamples merged;
  for (const ScoredExamples& worker : workers) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const ScoredExamples received, ScoredExamples::Parse(worker.Serialize()));
    merged.Merge(received);
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const ClickMetrics expected, whole.Evaluate());
  TANDEM_ASSERT_OK_AND_ASSIGN(const ClickMetrics got, merged.Evaluate());
  EXPECT_EQ(got.auc, expected.auc);
  EXPECT_NEAR(got.logloss, expected.logloss, 1e-12);
  EXPECT_NEAR(got.mean_prediction, expected.mean_prediction, 1e-12);
  EXPECT_EQ(got.examples, 500);
  EXPECT_EQ(got.positives, expected.positives);
}

TEST(ScoredExamples, RefuseForeignBytes) {
  ScoredExamples scored;
  scored.Add({1, 0}, {0.5f, -0.5f});
  const std::string bytes = scored.Serialize();
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(ScoredExamples::Parse(bytes.substr(0, size)), StatusIs(absl::StatusCode::kInvalidArgument))
        << size;
  }
  std::string longer = bytes + std::string(5, '\0');
  EXPECT_THAT(ScoredExamples::Parse(longer), StatusIs(absl::StatusCode::kInvalidArgument));
  std::string foreign = bytes;
  foreign[0] ^= 1;
  EXPECT_THAT(ScoredExamples::Parse(foreign), StatusIs(absl::StatusCode::kInvalidArgument));
  std::string huge = bytes;
  for (int i = 8; i < 16; ++i) huge[i] = '\xff';
  EXPECT_THAT(ScoredExamples::Parse(huge), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tandem::worker
