// SPDX-License-Identifier: Apache-2.0
#include "ps/client/error_feedback.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "ps/wire/value_codec.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;

constexpr size_t kPlenty = size_t{64} << 20;

std::vector<float> Push(ErrorFeedback* feedback, v1::ValueFormat format, const std::vector<uint64_t>& ids,
                        const std::vector<float>& gradients, const uint32_t* positions = nullptr) {
  const size_t dim = gradients.size() / ids.size();
  std::string wire(ids.size() * RowBytes(format, dim), '\0');
  feedback->Encode(format, ids, gradients.data(), positions, wire.data());
  std::vector<float> sent(gradients.size());
  DecodeRows(format, wire.data(), nullptr, ids.size(), dim, sent.data());
  return sent;
}

// The model: a map from id to a residual, one row after the other.
TEST(ErrorFeedbackTest, SendsWhatAMapOfResidualsWouldSend) {
  for (const v1::ValueFormat format : {v1::VALUES_INT8, v1::VALUES_BF16, v1::VALUES_F16}) {
    constexpr size_t kDim = 5;
    ErrorFeedback feedback(kDim, kPlenty);
    std::map<uint64_t, std::vector<float>> residuals;
    CounterRandom random(1, 0);
    for (int push = 0; push < 60; ++push) {
      std::vector<uint64_t> ids;
      const size_t wanted = random.Below(150);
      for (uint64_t id = 0; ids.size() < wanted; id += 1 + random.Below(30)) ids.push_back(Mix64(id));
      std::vector<float> gradients(ids.size() * kDim);
      for (float& g : gradients) g = static_cast<float>(random.Below(2001)) / 1000 - 1;
      if (ids.empty()) continue;
      std::vector<uint32_t> positions(ids.size());
      for (uint32_t i = 0; i < positions.size(); ++i) positions[i] = positions.size() - 1 - i;
      const bool placed = push % 2 == 1;
      const std::vector<float> sent =
          Push(&feedback, format, ids, gradients, placed ? positions.data() : nullptr);
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<float>& residual = residuals.try_emplace(ids[i], kDim, 0.0f).first->second;
        const size_t row = placed ? positions[i] : i;
        std::vector<float> sum(kDim), want(kDim);
        for (size_t d = 0; d < kDim; ++d) sum[d] = gradients[row * kDim + d] + residual[d];
        std::string wire(RowBytes(format, kDim), '\0');
        EncodeRows(format, sum.data(), nullptr, 1, kDim, wire.data());
        DecodeRows(format, wire.data(), nullptr, 1, kDim, want.data());
        for (size_t d = 0; d < kDim; ++d) {
          ASSERT_EQ(sent[i * kDim + d], want[d]) << "push " << push;
          residual[d] = sum[d] - want[d];
        }
      }
    }
    EXPECT_GT(feedback.statistics().rows, 500u);
    EXPECT_EQ(feedback.statistics().dropped_rows, 0u);
  }
}

TEST(ErrorFeedbackTest, PastItsBudgetItDropsTheResidualsOfIdsNotPushedLatelyAndCountsThem) {
  constexpr size_t kDim = 16;
  constexpr size_t kBudget = 100'000;
  ErrorFeedback feedback(kDim, kBudget);
  // 38.4 codes: with the residual it becomes 38, 39, 38, 39, 38 and so on.
  std::vector<float> gradient(kDim, 38.4f / 127);
  gradient[0] = 1.0f;
  const auto push = [&](uint64_t id) { return Push(&feedback, v1::VALUES_INT8, {id}, gradient); };
  const std::vector<float> fresh = push(0);
  const std::vector<float> second = push(0);
  ASSERT_NE(second, fresh);
  for (uint64_t id = 1; id < 20000; ++id) {
    push(id);
    if (id % 10 == 0) push(0);  // stays, because it is pushed again and again
  }
  const ErrorFeedbackStatistics statistics = feedback.statistics();
  EXPECT_LE(statistics.bytes, kBudget);
  EXPECT_GT(statistics.rows, 500u);
  EXPECT_EQ(statistics.dropped_rows + statistics.rows, 20000u);
  EXPECT_EQ(push(1), fresh);
  EXPECT_NE(push(0), fresh);  // the 2002nd push
}

TEST(ErrorFeedbackTest, ABudgetThatHoldsNothingDropsEverything) {
  ErrorFeedback feedback(4, 10);
  for (uint64_t id = 0; id < 3; ++id) Push(&feedback, v1::VALUES_INT8, {id}, {1, 0.3f, 0.2f, 0.1f});
  EXPECT_EQ(feedback.statistics().rows, 0u);
  EXPECT_EQ(feedback.statistics().dropped_rows, 3u);
}

TEST(ErrorFeedbackTest, ARowThatIsNoNumberLeavesTheResidualAsItWas) {
  ErrorFeedback one(2, kPlenty), other(2, kPlenty);
  const std::vector<float> gradient = {1, 0.3f};
  Push(&one, v1::VALUES_INT8, {7}, gradient);
  Push(&other, v1::VALUES_INT8, {7}, gradient);
  for (const float wrong :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    EXPECT_TRUE(std::isnan(Push(&one, v1::VALUES_INT8, {7}, {1, wrong})[0]));
  }
  EXPECT_EQ(Push(&one, v1::VALUES_INT8, {7}, gradient), Push(&other, v1::VALUES_INT8, {7}, gradient));
}

// Rows of a quadratic function, sum over d of (w[d] - target[d])^2 / 2. The first coordinate is noisy: its
// gradients are a thousand times those of the others, which the int8 scale of the row rounds to zero.
double LossAfterTraining(const WireOptions& wire) {
  constexpr size_t kDim = 8;
  constexpr size_t kRows = 20;
  PsCluster cluster(2);
  auto client = cluster.Connect();
  TANDEM_CHECK(client.ok());
  v1::TableConfig config = EmbeddingTable("t", kDim, Sgd(0.05f), Zeros());
  *config.mutable_update_mode() = Async();
  TANDEM_CHECK((*client)->CreateTable(config).ok() && (*client)->SetWire("t", wire).ok());
  std::vector<uint64_t> ids(kRows);
  for (size_t i = 0; i < kRows; ++i) ids[i] = Mix64(i);
  std::vector<float> rows(kRows * kDim), gradients(kRows * kDim);
  const auto target = [](size_t row, size_t d) { return std::sin(static_cast<float>(row * kDim + d)) / 4; };
  CounterRandom random(1, 0);
  double loss = 0;
  for (uint64_t step = 0; step < 600; ++step) {
    TANDEM_CHECK((*client)->Pull(step, false, {{.table = "t", .ids = ids, .rows = rows.data()}}).ok());
    loss = 0;
    for (size_t r = 0; r < kRows; ++r) {
      const float noise = random.Below(2) == 0 ? 100.0f : -100.0f;
      for (size_t d = 0; d < kDim; ++d) {
        const float error = rows[r * kDim + d] - target(r, d);
        gradients[r * kDim + d] = d == 0 ? noise : error;
        if (d > 0) loss += 0.5 * error * error;
      }
    }
    TANDEM_CHECK((*client)->Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}).ok());
  }
  return loss;
}

TEST(ErrorFeedbackConvergenceTest, Int8PushesReachWhatF32ReachesWithFeedbackAndNotWithout) {
  const double f32 = LossAfterTraining({});
  const double with = LossAfterTraining({.push_values = v1::VALUES_INT8});
  const double without = LossAfterTraining({.push_values = v1::VALUES_INT8, .error_feedback = false});
  EXPECT_LT(f32, 1e-6);
  // One code is worth 100 / 127 of a gradient, hence a step of 0.04.
  EXPECT_LT(with, 0.1);
  EXPECT_GT(without, 1.0);  // almost unchanged since the start
  EXPECT_GT(without, 20 * with);
}

// Logistic regression in one table with a row per feature. bf16 needs no error feedback; int8 with it ends
// close to f32.
double LogisticLoss(const WireOptions& wire) {
  constexpr size_t kFeatures = 40, kExamples = 400;
  PsCluster cluster(1);
  auto client = cluster.Connect();
  TANDEM_CHECK(client.ok());
  v1::TableConfig config = EmbeddingTable("t", kFeatures, Sgd(0.5f), Zeros());
  *config.mutable_update_mode() = Async();
  TANDEM_CHECK((*client)->CreateTable(config).ok() && (*client)->SetWire("t", wire).ok());
  CounterRandom random(3, 0);
  const auto real = [&] { return static_cast<float>(random.Below(2001)) / 1000 - 1; };
  std::vector<float> truth(kFeatures), x(kExamples * kFeatures), y(kExamples);
  for (float& w : truth) w = 2 * real();
  for (size_t i = 0; i < kExamples; ++i) {
    float z = 0;
    for (size_t d = 0; d < kFeatures; ++d) {
      // Features of very different sizes, and so gradients of very different sizes.
      x[i * kFeatures + d] = real() * std::pow(10.0f, -static_cast<float>(d % 4));
      z += x[i * kFeatures + d] * truth[d];
    }
    y[i] = z > 0 ? 1 : 0;
  }
  const std::vector<uint64_t> ids = {42};
  std::vector<float> w(kFeatures), gradient(kFeatures);
  double loss = 0;
  for (uint64_t step = 0; step < 300; ++step) {
    TANDEM_CHECK((*client)->Pull(step, false, {{.table = "t", .ids = ids, .rows = w.data()}}).ok());
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    loss = 0;
    for (size_t i = 0; i < kExamples; ++i) {
      float z = 0;
      for (size_t d = 0; d < kFeatures; ++d) z += x[i * kFeatures + d] * w[d];
      const float p = 1 / (1 + std::exp(-z));
      loss -= std::log(std::max(1e-7f, y[i] > 0 ? p : 1 - p)) / kExamples;
      for (size_t d = 0; d < kFeatures; ++d) gradient[d] += (p - y[i]) * x[i * kFeatures + d] / kExamples;
    }
    TANDEM_CHECK((*client)->Push(step, {{.table = "t", .ids = ids, .gradients = gradient.data()}}).ok());
  }
  return loss;
}

TEST(ErrorFeedbackConvergenceTest, ALogisticModelEndsWhereF32Ends) {
  const double f32 = LogisticLoss({});
  EXPECT_NEAR(LogisticLoss({.push_values = v1::VALUES_INT8}), f32, 1e-4);
  EXPECT_NEAR(LogisticLoss({.pull_values = v1::VALUES_BF16, .push_values = v1::VALUES_BF16}), f32, 1e-2);
}

}  // namespace
}  // namespace tandem::ps
