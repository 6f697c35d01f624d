// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/read_gauge.h"

#include <cstdint>

#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

constexpr size_t kIds = ReadGauge::kLargePull;

// Makes pulls that take `with_ns` with the cache and `without_ns` without it. Returns how many used it.
uint64_t Pull(ReadGauge* gauge, uint64_t pulls, int64_t with_ns, int64_t without_ns, size_t ids = kIds) {
  uint64_t used = 0;
  for (uint64_t i = 0; i < pulls; ++i) {
    const ReadGauge::Decision decision = gauge->Begin(ids);
    if (decision.uses_cache) ++used;
    gauge->End(decision, ids, decision.uses_cache ? with_ns : without_ns);
  }
  return used;
}

constexpr uint64_t kTrials = ReadGauge::kWarmUp + 2 * ReadGauge::kTrial;

TEST(ReadGaugeTest, SmallPullsAlwaysUseTheCache) {
  ReadGauge gauge;
  EXPECT_EQ(Pull(&gauge, 2 * ReadGauge::kCycle, 1000, 1, kIds - 1), 2 * ReadGauge::kCycle);
  EXPECT_EQ(gauge.bypassed(), 0);
}

TEST(ReadGaugeTest, LargePullsGoAroundACacheThatCostsTime) {
  ReadGauge gauge;
  EXPECT_EQ(Pull(&gauge, kTrials, 1000, 800), ReadGauge::kWarmUp + ReadGauge::kTrial);
  EXPECT_EQ(Pull(&gauge, ReadGauge::kPeriod, 1000, 800), 0);
  EXPECT_EQ(gauge.bypassed(), (ReadGauge::kTrial + ReadGauge::kPeriod) * kIds);
}

TEST(ReadGaugeTest, LargePullsUseACacheThatSavesTimeOrCostsLittle) {
  for (const int64_t without_ns : {950, 1000, 5000}) {
    ReadGauge gauge;
    EXPECT_EQ(Pull(&gauge, ReadGauge::kCycle, 1000, without_ns), ReadGauge::kCycle - ReadGauge::kTrial);
  }
}

TEST(ReadGaugeTest, EachCycleDecidesAnew) {
  ReadGauge gauge;
  Pull(&gauge, ReadGauge::kCycle, 1000, 100);
  EXPECT_EQ(Pull(&gauge, kTrials, 1000, 5000), ReadGauge::kWarmUp + ReadGauge::kTrial);
  EXPECT_EQ(Pull(&gauge, ReadGauge::kPeriod, 1000, 5000), ReadGauge::kPeriod);
}

TEST(ReadGaugeTest, AFewSlowPullsDoNotDecide) {
  ReadGauge gauge;
  for (uint64_t i = 0; i < kTrials; ++i) {
    const ReadGauge::Decision decision = gauge.Begin(kIds);
    gauge.End(decision, kIds, decision.uses_cache && i % 8 == 0 ? 1'000'000 : 1000);
  }
  EXPECT_EQ(Pull(&gauge, ReadGauge::kPeriod, 1000, 1000), ReadGauge::kPeriod);
}

TEST(ReadGaugeTest, WithoutEnoughTimesPullsUseTheCache) {
  ReadGauge gauge;
  for (uint64_t i = 0; i < kTrials; ++i) gauge.Begin(kIds);  // they fail
  EXPECT_TRUE(gauge.Begin(kIds).uses_cache);
}

TEST(ReadGaugeTest, ATimeOfAnEarlierCycleDoesNotCount) {
  ReadGauge gauge;
  Pull(&gauge, ReadGauge::kWarmUp, 1000, 1000);
  const ReadGauge::Decision late = gauge.Begin(kIds);
  ASSERT_TRUE(late.timed);
  Pull(&gauge, ReadGauge::kCycle, 1000, 1000);
  for (uint64_t i = 0; i < ReadGauge::kTrial; ++i) gauge.End(late, kIds, 1'000'000);
  EXPECT_EQ(Pull(&gauge, ReadGauge::kPeriod, 1000, 1000), ReadGauge::kPeriod - ReadGauge::kTrial);
}

}  // namespace
}  // namespace tandem::ps
