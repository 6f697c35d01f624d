// SPDX-License-Identifier: Apache-2.0
#include "replay/selectors/sum_tree.h"

#include <numeric>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace tandem::replay {
namespace {

TEST(SumTree, TotalIsTheSumOfTheWeightsHoweverItGrew) {
  for (const uint32_t size : {1u, 15u, 16u, 17u, 255u, 256u, 257u, 5000u, 70000u}) {
    SumTree tree;
    double sum = 0;
    for (uint32_t i = 0; i < size; ++i) {
      tree.Set(i, i + 1);
      sum += i + 1;
    }
    EXPECT_EQ(tree.total(), sum) << size;  // integers: exact in any order
    EXPECT_EQ(tree.Get(size - 1), size);
    EXPECT_EQ(tree.Get(size + 100000), 0);
  }
}

TEST(SumTree, FindsTheIndexAtWhichTheRunningSumExceedsTheTarget) {
  SumTree tree;
  const std::vector<double> weights = {0, 3, 0, 1, 2, 0};
  for (uint32_t i = 0; i < weights.size(); ++i) tree.Set(i, weights[i]);
  tree.Set(1000, 4);
  EXPECT_EQ(tree.Find(0), 1u);
  EXPECT_EQ(tree.Find(2.999), 1u);
  EXPECT_EQ(tree.Find(3), 3u);
  EXPECT_EQ(tree.Find(4), 4u);
  EXPECT_EQ(tree.Find(6), 1000u);
  EXPECT_EQ(tree.Find(9.999), 1000u);
  EXPECT_EQ(tree.Find(10), 1000u) << "a target that rounding has moved to the total";
}

TEST(SumTree, MillionsOfUpdatesLeaveNoRoundingError) {
  constexpr uint32_t kSize = 1000;
  SumTree tree, fresh;
  CounterRandom random(1, 2);
  std::vector<double> weights(kSize);
  for (int i = 0; i < 2'000'000; ++i) {
    const auto index = static_cast<uint32_t>(random.Below(kSize));
    weights[index] = random.UniformDouble() * (i % 3 == 0 ? 1e12 : 1e-12);
    tree.Set(index, weights[index]);
  }
  for (uint32_t i = 0; i < kSize; ++i) tree.Set(i, i % 7 == 0 ? 1e-9 : 0);
  for (uint32_t i = 0; i < kSize; ++i) fresh.Set(i, i % 7 == 0 ? 1e-9 : 0);
  EXPECT_EQ(tree.total(), fresh.total());
}

TEST(SumTree, NeverFindsAWeightOfZero) {
  SumTree tree;
  CounterRandom random(3, 4);
  for (uint32_t i = 0; i < 3000; ++i) tree.Set(i, i % 5 == 1 ? random.UniformDouble() : 0);
  for (int i = 0; i < 100000; ++i) {
    EXPECT_GT(tree.Get(tree.Find(random.UniformDouble() * tree.total())), 0);
  }
  EXPECT_GT(tree.Get(tree.Find(tree.total() * 1.0000001)), 0);
}

TEST(SumTree, ClearForgetsAllWeights) {
  SumTree tree;
  tree.Set(500, 3);
  tree.Clear();
  EXPECT_EQ(tree.total(), 0);
  tree.Set(2, 1);
  EXPECT_EQ(tree.total(), 1);
  EXPECT_EQ(tree.Find(0.5), 2u);
}

}  // namespace
}  // namespace tandem::replay
