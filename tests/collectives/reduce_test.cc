#include "collectives/reduce.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::collectives {
namespace {

using ::testing::ElementsAre;

template <typename T>
std::vector<T> Reduced(ReduceOp op, std::vector<std::vector<T>> inputs) {
  std::vector<const T*> sources;
  for (const auto& input : inputs) sources.push_back(input.data());
  std::vector<T> out(inputs[0].size());
  ReduceInRankOrder<T>(op, sources, out.size(), out.data());
  return out;
}

TEST(ReduceTest, SumsAreTakenInRankOrder) {
  // (1e8 + -1e8) + 1 = 1, but 1e8 + (-1e8 + 1) = 0 in float.
  EXPECT_THAT(Reduced<float>(ReduceOp::kSum, {{1e8f}, {-1e8f}, {1.0f}}), ElementsAre(1.0f));
  EXPECT_THAT(Reduced<float>(ReduceOp::kSum, {{1.0f}, {1e8f}, {-1e8f}}), ElementsAre(0.0f));
}

TEST(ReduceTest, IntegerSumsWrapAndAveragesRoundTowardsZero) {
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THAT(Reduced<int64_t>(ReduceOp::kSum, {{most}, {1}}),
              ElementsAre(std::numeric_limits<int64_t>::min()));
  EXPECT_THAT(Reduced<int64_t>(ReduceOp::kAvg, {{-3, 3}, {0, 0}}), ElementsAre(-1, 1));
}

TEST(ReduceTest, NotANumberStaysInSumsAndOfTheFirstRankInMinAndMax) {
  const float nan = std::nanf("");
  EXPECT_TRUE(std::isnan(Reduced<float>(ReduceOp::kSum, {{1.0f}, {nan}})[0]));
  EXPECT_TRUE(std::isnan(Reduced<float>(ReduceOp::kMax, {{nan}, {1.0f}})[0]));
  EXPECT_EQ(Reduced<float>(ReduceOp::kMax, {{1.0f}, {nan}})[0], 1.0f);
}

TEST(ReduceTest, TheOutputMayBeAnyOfTheSources) {
  for (int target = 0; target < 3; ++target) {
    std::vector<std::vector<double>> inputs(3, std::vector<double>(5000));
    for (int r = 0; r < 3; ++r) {
      for (int i = 0; i < 5000; ++i) inputs[r][i] = i * (r + 1);
    }
    const std::vector<const double*> sources = {inputs[0].data(), inputs[1].data(), inputs[2].data()};
    ReduceInRankOrder<double>(ReduceOp::kSum, sources, 5000, inputs[target].data());
    for (int i = 0; i < 5000; ++i) ASSERT_EQ(inputs[target][i], i * 6.0);
  }
}

}  // namespace
}  // namespace tandem::collectives
