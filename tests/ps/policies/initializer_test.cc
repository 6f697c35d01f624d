// SPDX-License-Identifier: Apache-2.0
#include "ps/policies/initializer.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

std::unique_ptr<Initializer> InitializerOf(const v1::InitializerConfig& config) {
  auto initializer = MakeInitializer(config);
  EXPECT_THAT(initializer, tandem::testing::IsOk());
  return *std::move(initializer);
}

std::vector<float> Row(const v1::InitializerConfig& config, uint64_t seed, uint64_t id, size_t dim) {
  std::vector<float> row(dim, -77.0f);
  InitializerOf(config)->Fill(seed, id, row.data(), dim);
  return row;
}

struct Moments {
  double mean = 0;
  double stddev = 0;
  double low = 0;
  double high = 0;
};

// Returns the moments of 20,000 rows of 16 values.
Moments MomentsOf(const v1::InitializerConfig& config) {
  constexpr size_t kRows = 20000, kDim = 16;
  const std::unique_ptr<Initializer> initializer = InitializerOf(config);
  std::vector<float> values(kRows * kDim);
  for (size_t id = 0; id < kRows; ++id) initializer->Fill(/*seed=*/5, id, &values[id * kDim], kDim);
  Moments moments;
  for (const float v : values) moments.mean += v;
  moments.mean /= static_cast<double>(values.size());
  for (const float v : values) moments.stddev += (v - moments.mean) * (v - moments.mean);
  moments.stddev = std::sqrt(moments.stddev / static_cast<double>(values.size()));
  moments.low = *std::min_element(values.begin(), values.end());
  moments.high = *std::max_element(values.begin(), values.end());
  return moments;
}

std::vector<v1::InitializerConfig> AllKinds() {
  return {Zeros(), Constant(0.5f), Uniform(-1, 1), Normal(0, 1), TruncatedNormal(0, 1), Xavier()};
}

TEST(InitializerTest, AllKindsOfTheRegistryAreMade) {
  std::vector<absl::string_view> kinds;
  for (const auto& config : AllKinds()) kinds.push_back(InitializerOf(config)->kind());
  EXPECT_THAT(InitializerKinds(), ::testing::ElementsAreArray(kinds));
}

TEST(InitializerTest, ARowIsAFunctionOfSeedAndIdWhateverWasMadeBefore) {
  for (const auto& config : AllKinds()) {
    const std::unique_ptr<Initializer> busy = InitializerOf(config);
    std::vector<float> row(33);
    for (uint64_t id = 100; id-- > 0;) busy->Fill(/*seed=*/9, id, row.data(), row.size());  // ends with id 0
    EXPECT_EQ(row, Row(config, 9, 0, 33)) << config.kind();
  }
}

TEST(InitializerTest, RandomRowsDifferBySeedAndById) {
  for (const auto& config : {Uniform(-1, 1), Normal(0, 1), TruncatedNormal(0, 1), Xavier()}) {
    EXPECT_NE(Row(config, 1, 7, 8), Row(config, 2, 7, 8)) << config.kind();
    EXPECT_NE(Row(config, 1, 7, 8), Row(config, 1, 8, 8)) << config.kind();
  }
}

TEST(InitializerTest, AValueDoesNotDependOnHowLongItsRowIs) {
  for (const auto& config : {Uniform(-1, 1), Normal(0, 1), TruncatedNormal(0, 1)}) {
    std::vector<float> row = Row(config, 1, 7, 64);
    row.resize(3);
    EXPECT_EQ(row, Row(config, 1, 7, 3)) << config.kind();
  }
}

TEST(InitializerTest, WritesTheRowAndNothingAfterIt) {
  for (const auto& config : AllKinds()) {
    std::vector<float> row(6, -77.0f);
    InitializerOf(config)->Fill(1, 2, row.data(), 5);
    EXPECT_EQ(row[5], -77.0f) << config.kind();
  }
}

TEST(InitializerTest, ZerosAndConstantAreWhatTheySay) {
  EXPECT_THAT(Row(Zeros(), 1, 2, 17), Each(0.0f));
  EXPECT_THAT(Row(Constant(-2.5f), 1, 2, 3), ElementsAre(-2.5f, -2.5f, -2.5f));
}

TEST(InitializerTest, UniformFillsItsRange) {
  const Moments m = MomentsOf(Uniform(-0.5f, 1.5f));
  EXPECT_NEAR(m.mean, 0.5, 0.005);
  EXPECT_NEAR(m.stddev, 2 / std::sqrt(12.0), 0.005);
  EXPECT_GE(m.low, -0.5);
  EXPECT_LT(m.low, -0.499);
  EXPECT_LT(m.high, 1.5);
  EXPECT_GT(m.high, 1.499);
}

TEST(InitializerTest, UniformNeverReachesItsHighEndEvenWhereRoundingWould) {
  // Between 1 and the next float there is only 1.
  EXPECT_THAT(Row(Uniform(1.0f, std::nextafter(1.0f, 2.0f)), 1, 2, 1000), Each(1.0f));
  EXPECT_THAT(Row(Uniform(3.0f, 3.0f), 1, 2, 4), Each(3.0f));
}

TEST(InitializerTest, NormalHasItsMeanAndDeviationAndTails) {
  const Moments m = MomentsOf(Normal(2, 0.5f));
  EXPECT_NEAR(m.mean, 2, 0.005);
  EXPECT_NEAR(m.stddev, 0.5, 0.005);
  EXPECT_LT(m.low, 2 - 4 * 0.5);  // 320,000 values: some ten lie beyond 4 deviations on each side
  EXPECT_GT(m.high, 2 + 4 * 0.5);
}

TEST(InitializerTest, TruncatedNormalEndsAtTwoDeviations) {
  const Moments m = MomentsOf(TruncatedNormal(-1, 0.5f));
  EXPECT_NEAR(m.mean, -1, 0.005);
  EXPECT_NEAR(m.stddev, 0.5 * 0.87962566, 0.003);  // of a standard normal cut at +-2
  EXPECT_GE(m.low, -2);
  EXPECT_LE(m.high, 0);
  EXPECT_LT(m.low, -1.99);
}

TEST(InitializerTest, XavierBoundShrinksWithDim) {
  const Moments m = MomentsOf(Xavier(2.0f));  // dim 16
  const double bound = 2 * std::sqrt(6.0 / 17.0);
  EXPECT_NEAR(m.mean, 0, 0.01);
  EXPECT_NEAR(m.stddev, bound / std::sqrt(3.0), 0.01);
  EXPECT_GE(m.low, -bound * 1.000001);
  EXPECT_LE(m.high, bound * 1.000001);
  EXPECT_GT(m.high, bound * 0.999);
}

}  // namespace
}  // namespace tandem::ps
