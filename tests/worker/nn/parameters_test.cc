// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/parameters.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

TEST(ParametersTest, OrthogonalWeightsHaveOrthogonalRowsOrColumnsOfTheGivenLength) {
  constexpr float kGain = 1.5f;
  const std::vector<std::pair<int, int>> shapes = {{3, 8}, {8, 3}, {5, 5}, {1, 4}, {64, 64}};
  for (const auto& [out, in] : shapes) {
    Parameters parameters(7);
    const size_t offset = parameters.AddOrthogonal("w", out, in, kGain);
    const float* const w = parameters.value(offset);
    const int vectors = std::min(out, in), length = std::max(out, in);
    const auto at = [&](int vector, int i) { return out <= in ? w[vector * in + i] : w[i * in + vector]; };
    for (int a = 0; a < vectors; ++a) {
      for (int b = 0; b < vectors; ++b) {
        double product = 0;
        for (int i = 0; i < length; ++i) product += static_cast<double>(at(a, i)) * at(b, i);
        ASSERT_NEAR(product, a == b ? kGain * kGain : 0.0, 1e-5) << out << " x " << in;
      }
    }
  }
}

TEST(ParametersTest, OrthogonalWeightsDependOnSeedAndNameOnly) {
  Parameters one(7), two(7), other(8);
  one.AddOrthogonal("w", 4, 4, 1);
  two.AddZeros("before", {3}, true);
  const size_t offset = two.AddOrthogonal("w", 4, 4, 1);
  other.AddOrthogonal("w", 4, 4, 1);
  EXPECT_TRUE(std::equal(one.values().begin(), one.values().end(), two.value(offset)));
  EXPECT_FALSE(std::equal(one.values().begin(), one.values().end(), other.value(0)));
}

}  // namespace
}  // namespace tandem::worker
