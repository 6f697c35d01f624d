// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/gradient_clip.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::worker {
namespace {

using ::testing::ElementsAre;

TEST(ClipGlobalNormTest, OnlyAGreaterNormIsScaled) {
  std::vector<float> gradients = {3, 4};
  EXPECT_DOUBLE_EQ(ClipGlobalNorm(10, absl::MakeSpan(gradients)), 5);
  EXPECT_THAT(gradients, ElementsAre(3, 4));
  EXPECT_DOUBLE_EQ(ClipGlobalNorm(0, absl::MakeSpan(gradients)), 5);
  EXPECT_THAT(gradients, ElementsAre(3, 4));
  EXPECT_DOUBLE_EQ(ClipGlobalNorm(2.5, absl::MakeSpan(gradients)), 5);
  EXPECT_THAT(gradients, ElementsAre(1.5, 2));
}

TEST(ClipGlobalNormTest, ANormThatIsNotFiniteChangesNothing) {
  std::vector<float> gradients = {1, std::numeric_limits<float>::infinity()};
  EXPECT_TRUE(std::isinf(ClipGlobalNorm(1, absl::MakeSpan(gradients))));
  EXPECT_EQ(gradients[0], 1);
  gradients = {1, NAN};
  EXPECT_TRUE(std::isnan(ClipGlobalNorm(1, absl::MakeSpan(gradients))));
  EXPECT_EQ(gradients[0], 1);
}

}  // namespace
}  // namespace tandem::worker
