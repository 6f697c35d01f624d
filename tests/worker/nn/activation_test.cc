// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/activation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/models/normals.h"

namespace tandem::worker {
namespace {

// A matrix of `cols` columns in rows of `cols` + 3 floats, so that the test detects kernels that ignore the
// stride or write too far.
class ActivationTest : public ::testing::TestWithParam<int> {
 protected:
  static constexpr size_t kRows = 7;
  size_t cols_ = GetParam();
  size_t ld_ = cols_ + 3;
  std::vector<float> bias_ = Normals(cols_, 1);
  std::vector<float> y_ = Normals(kRows * ld_, 2);
  Matrix View(std::vector<float>& v) { return {v.data(), ld_, cols_}; }
  void ExpectMarginUnchanged(const std::vector<float>& now, const std::vector<float>& before) {
    for (size_t i = 0; i < now.size(); ++i) {
      if (i % ld_ < cols_) continue;
      EXPECT_EQ(now[i], before[i]) << "margin at " << i;
    }
  }
};

TEST_P(ActivationTest, BiasReluAddsCutsAndDrops) {
  for (float rate : {0.0f, 0.5f}) {
    const Dropout dropout = MakeDropout(rate, 1, 2, 3);
    std::vector<float> y = y_;
    BiasRelu(bias_.data(), dropout, kRows, View(y));
    for (size_t r = 0; r < kRows; ++r) {
      for (size_t c = 0; c < cols_; ++c) {
        const float kept = Keeps(dropout, r * cols_ + c) ? dropout.scale : 0.0f;
        EXPECT_FLOAT_EQ(y[r * ld_ + c], std::max(y_[r * ld_ + c] + bias_[c], 0.0f) * kept);
      }
    }
    ExpectMarginUnchanged(y, y_);
  }
}

TEST_P(ActivationTest, BiasTanhAddsAndBends) {
  std::vector<float> y = y_;
  BiasTanh(bias_.data(), kRows, View(y));
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < cols_; ++c)
      EXPECT_NEAR(y[r * ld_ + c], std::tanh(y_[r * ld_ + c] + bias_[c]), 1e-6);
  }
  ExpectMarginUnchanged(y, y_);
}

TEST_P(ActivationTest, BiasTanhBackwardScalesAndSums) {
  const std::vector<float> dy = Normals(kRows * ld_, 3);
  std::vector<float> dx = dy;
  std::vector<float> sums(cols_ + 1, 9.0f);
  BiasTanhBackward(View(y_), View(dx), kRows, View(dx), sums.data());
  for (size_t c = 0; c < cols_; ++c) {
    float sum = 0;
    for (size_t r = 0; r < kRows; ++r) {
      const float y = y_[r * ld_ + c];
      EXPECT_NEAR(dx[r * ld_ + c], dy[r * ld_ + c] * (1 - y * y), 1e-5);
      sum += dx[r * ld_ + c];
    }
    EXPECT_NEAR(sums[c], sum, 1e-4);
  }
  EXPECT_EQ(sums[cols_], 9.0f);
  ExpectMarginUnchanged(dx, dy);
}

TEST_P(ActivationTest, BiasReluBackwardMasksScalesAndSums) {
  const std::vector<float> dy = Normals(kRows * ld_, 3);
  std::vector<float> dx = dy;
  std::vector<float> sums(cols_ + 1, 9.0f);
  BiasReluBackward(View(y_), View(dx), 2.0f, kRows, View(dx), sums.data());
  std::vector<float> expected(cols_);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < cols_; ++c) {
      const float g = y_[r * ld_ + c] > 0 ? 2.0f * dy[r * ld_ + c] : 0.0f;
      EXPECT_EQ(dx[r * ld_ + c], g);
      expected[c] += g;
    }
  }
  ExpectMarginUnchanged(dx, dy);
  for (size_t c = 0; c < cols_; ++c) EXPECT_NEAR(sums[c], expected[c], 1e-5);
  EXPECT_EQ(sums[cols_], 9.0f);
}

TEST_P(ActivationTest, SumsRunOverRowsAndColumns) {
  std::vector<float> by_column(cols_ + 1, 9.0f), by_row(kRows, 1.0f);
  ColumnSums(View(y_), kRows, by_column.data());
  AddRowSums(View(y_), kRows, by_row.data());
  std::vector<double> columns(cols_), rows(kRows, 1.0);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < cols_; ++c) {
      columns[c] += y_[r * ld_ + c];
      rows[r] += y_[r * ld_ + c];
    }
  }
  for (size_t c = 0; c < cols_; ++c) EXPECT_NEAR(by_column[c], columns[c], 1e-5);
  for (size_t r = 0; r < kRows; ++r) EXPECT_NEAR(by_row[r], rows[r], 1e-4);
  EXPECT_EQ(by_column[cols_], 9.0f);
}

TEST_P(ActivationTest, FillAndBiasKeepTheMargin) {
  std::vector<float> x = y_;
  AddBias(bias_.data(), kRows, View(x));
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < cols_; ++c) EXPECT_EQ(x[r * ld_ + c], y_[r * ld_ + c] + bias_[c]);
  }
  ExpectMarginUnchanged(x, y_);
  const std::vector<float> values = Normals(kRows, 4);
  FillRows(values.data(), kRows, View(x));
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t c = 0; c < cols_; ++c) EXPECT_EQ(x[r * ld_ + c], values[r]);
  }
  ExpectMarginUnchanged(x, y_);
}

INSTANTIATE_TEST_SUITE_P(Widths, ActivationTest, ::testing::Values(1, 2, 4, 7, 16, 17, 31, 64, 67, 130));

TEST(DropoutTest, KeepsTheWantedPartAndDiffersBetweenStepsAndLayers) {
  constexpr uint32_t kUnits = 100000;
  auto share = [](const Dropout& dropout) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < kUnits; ++i) kept += Keeps(dropout, i);
    return static_cast<double>(kept) / kUnits;
  };
  for (float rate : {0.1f, 0.5f, 0.9f}) {
    const Dropout dropout = MakeDropout(rate, 1, 2, 3);
    EXPECT_NEAR(share(dropout), 1 - rate, 0.006);
    EXPECT_FLOAT_EQ(dropout.scale, 1 / (1 - rate));
    for (const Dropout& other :
         {MakeDropout(rate, 9, 2, 3), MakeDropout(rate, 1, 9, 3), MakeDropout(rate, 1, 2, 9)}) {
      uint32_t same = 0;
      for (uint32_t i = 0; i < kUnits; ++i) same += Keeps(dropout, i) == Keeps(other, i);
      const double independent = (1 - rate) * (1 - rate) + rate * rate;
      EXPECT_NEAR(static_cast<double>(same) / kUnits, independent, 0.01);
    }
    // Adjacent units are independent, too.
    uint32_t runs = 0;
    for (uint32_t i = 0; i < kUnits; ++i) runs += Keeps(dropout, i) && Keeps(dropout, i + 1);
    EXPECT_NEAR(static_cast<double>(runs) / kUnits, (1 - rate) * (1 - rate), 0.01);
  }
  EXPECT_EQ(share(MakeDropout(0.0f, 1, 2, 3)), 1.0);
}

}  // namespace
}  // namespace tandem::worker
