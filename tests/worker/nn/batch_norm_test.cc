// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/batch_norm.h"

#include <barrier>
#include <cmath>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/models/normals.h"

namespace tandem::worker {
namespace {

constexpr size_t kMargin = 3;  // floats after each row, which must not change

class BatchNormTest : public ::testing::TestWithParam<int> {
 protected:
  size_t cols_ = GetParam();
  size_t ld_ = cols_ + kMargin;
  Matrix View(std::vector<float>& v) { return {v.data(), ld_, cols_}; }
};

// The layer with its parameters, whose scales differ from one.
struct Layer {
  Layer(int width, const BatchNormOptions& options) : parameters(1), norm("x", width, options, &parameters) {
    const std::vector<float> noise = Normals(width, 7, 0.3);
    for (int c = 0; c < width; ++c) parameters.values()[c] += noise[c];
  }
  Parameters parameters;
  BatchNorm norm;
};

TEST_P(BatchNormTest, TrainingNormalizesTheBatchAndAveragesItsStatistics) {
  constexpr size_t kRows = 7;
  Layer layer(GetParam(), {.momentum = 0.25f, .epsilon = 1e-3f});
  const std::vector<float> x = Normals(kRows * ld_, 2, 3);
  std::vector<float> y = x;
  layer.norm.Forward(kRows, /*training=*/true, View(y));
  for (size_t c = 0; c < cols_; ++c) {
    double mean = 0, variance = 0;
    for (size_t r = 0; r < kRows; ++r) mean += x[r * ld_ + c] / double{kRows};
    for (size_t r = 0; r < kRows; ++r) variance += std::pow(x[r * ld_ + c] - mean, 2) / double{kRows};
    for (size_t r = 0; r < kRows; ++r) {
      const double expected =
          (x[r * ld_ + c] - mean) / std::sqrt(variance + 1e-3) * layer.parameters.values()[c];
      EXPECT_NEAR(y[r * ld_ + c], expected, 1e-5);
    }
    EXPECT_NEAR(layer.parameters.running_averages()[c], 0.25 * mean, 1e-6);
    EXPECT_NEAR(layer.parameters.running_averages()[cols_ + c], 0.75 + 0.25 * variance * kRows / (kRows - 1),
                1e-5);
  }
  for (size_t i = 0; i < y.size(); ++i) {
    if (i % ld_ < cols_) continue;
    EXPECT_EQ(y[i], x[i]) << "margin at " << i;
  }
}

TEST_P(BatchNormTest, ASmallerBatchWeighsLessInTheRunningAverages) {
  Layer layer(GetParam(), {.momentum = 0.5f});
  std::vector<float> full(8 * ld_, 4.0f), small(2 * ld_, 8.0f);
  layer.norm.Forward(8, /*training=*/true, View(full));
  EXPECT_NEAR(layer.parameters.running_averages()[0], 2.0, 1e-6);
  layer.norm.Forward(2, /*training=*/true, View(small));
  EXPECT_NEAR(layer.parameters.running_averages()[0], 2.0 + 0.125 * 6, 1e-6);
  EXPECT_EQ(layer.parameters.running_averages()[2 * cols_], 8.0f);
}

TEST_P(BatchNormTest, EvaluationUsesTheRunningAveragesAndLeavesThemAlone) {
  Layer layer(GetParam(), {.epsilon = 0.5f});
  for (size_t c = 0; c < cols_; ++c) {
    layer.parameters.running_averages()[c] = static_cast<float>(c);
    layer.parameters.running_averages()[cols_ + c] = 1.5f + static_cast<float>(c);
  }
  const std::vector<float> before(layer.parameters.running_averages().begin(),
                                  layer.parameters.running_averages().end());
  std::vector<float> y(ld_, 2.0f);
  layer.norm.Forward(1, /*training=*/false, View(y));
  for (size_t c = 0; c < cols_; ++c) {
    const double expected = (2.0 - static_cast<double>(c)) / std::sqrt(2.0 + static_cast<double>(c));
    EXPECT_NEAR(y[c], expected * layer.parameters.values()[c], 1e-5);
  }
  EXPECT_EQ(before, std::vector<float>(layer.parameters.running_averages().begin(),
                                       layer.parameters.running_averages().end()));
}

// Adds up the values of two threads.
class TwoWorkers {
 public:
  SumOverWorkers OfRank(int rank) {
    return [this, rank](absl::Span<double> values) {
      values_[rank].assign(values.begin(), values.end());
      barrier_.arrive_and_wait();
      for (size_t i = 0; i < values.size(); ++i) values[i] = values_[0][i] + values_[1][i];
      barrier_.arrive_and_wait();
    };
  }

 private:
  std::barrier<> barrier_{2};
  std::vector<double> values_[2];
};

TEST_P(BatchNormTest, TwoWorkersWithHalfABatchEachComputeWhatOneDoesWithTheWhole) {
  constexpr size_t kRows = 12, kFirst = 5;  // the halves may be uneven
  std::vector<float> y = Normals(kRows * ld_, 2, 3), dy = Normals(kRows * ld_, 3);
  std::vector<float> halves = y, d_halves = dy;
  Layer whole(GetParam(), {});
  whole.norm.Forward(kRows, /*training=*/true, View(y));
  whole.norm.Backward(kRows, View(dy));

  TwoWorkers workers;
  const SumOverWorkers sums[] = {workers.OfRank(0), workers.OfRank(1)};
  Layer first(GetParam(), {.sum = &sums[0]}), second(GetParam(), {.sum = &sums[1]});
  const auto work = [&](Layer* layer, size_t begin, size_t end) {
    layer->norm.Forward(end - begin, /*training=*/true, {halves.data() + begin * ld_, ld_, cols_});
    layer->norm.Backward(end - begin, {d_halves.data() + begin * ld_, ld_, cols_});
  };
  std::thread other([&] { work(&second, kFirst, kRows); });
  work(&first, 0, kFirst);
  other.join();

  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(halves[i], y[i], 1e-5) << i;
    EXPECT_NEAR(d_halves[i], dy[i], 1e-5) << i;
  }
  for (size_t c = 0; c < cols_; ++c) {
    EXPECT_NEAR(first.parameters.gradients()[c] + second.parameters.gradients()[c],
                whole.parameters.gradients()[c], 1e-4);
  }
  for (size_t i = 0; i < 2 * cols_ + 1; ++i) {
    EXPECT_NEAR(first.parameters.running_averages()[i], whole.parameters.running_averages()[i], 1e-6);
    EXPECT_EQ(first.parameters.running_averages()[i], second.parameters.running_averages()[i]);
  }
}

TEST_P(BatchNormTest, ABatchOfOneExampleGivesZerosAndNoNan) {
  Layer layer(GetParam(), {});
  std::vector<float> y(ld_, 5.0f), dy(ld_, 1.0f);
  layer.norm.Forward(1, /*training=*/true, View(y));
  layer.norm.Backward(1, View(dy));
  for (size_t c = 0; c < cols_; ++c) {
    EXPECT_EQ(y[c], 0.0f);
    EXPECT_EQ(dy[c], 0.0f);
    EXPECT_EQ(layer.parameters.running_averages()[cols_ + c], 1.0f);
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, BatchNormTest, ::testing::Values(1, 3, 4, 8, 17, 37, 64));

}  // namespace
}  // namespace tandem::worker
