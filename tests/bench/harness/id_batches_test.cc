// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/id_batches.h"

#include <cmath>
#include <set>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::bench {
namespace {

TEST(ZipfRanksTest, RanksComeAsOftenAsZipfSays) {
  constexpr uint64_t kRanks = 50;
  constexpr int kDraws = 200000;
  for (const double exponent : {0.8, 1.05, 2.0}) {
    const ZipfRanks ranks(kRanks, exponent);
    CounterRandom random(3, 0);
    std::vector<int> seen(kRanks, 0);
    for (int i = 0; i < kDraws; ++i) {
      const uint64_t rank = ranks.Draw(&random);
      ASSERT_LT(rank, kRanks);
      ++seen[rank];
    }
    double total = 0;
    for (uint64_t k = 1; k <= kRanks; ++k) total += std::pow(static_cast<double>(k), -exponent);
    for (uint64_t k = 1; k <= kRanks; ++k) {
      const double p = std::pow(static_cast<double>(k), -exponent) / total;
      EXPECT_NEAR(seen[k - 1], kDraws * p, 5 * std::sqrt(kDraws * p))
          << "rank " << k - 1 << " of " << exponent;
    }
  }
}

TEST(IdBatchesTest, EachBatchIsOfDistinctIdsOfTheTableAndTheSameEveryTime) {
  for (const PsDistribution distribution : AllPsDistributions()) {
    const auto batches = MakeIdBatches(500, 4000, distribution);
    EXPECT_EQ(batches.size(), (size_t{1} << 19) / 500);
    for (const auto& batch : batches) {
      EXPECT_EQ(std::set<uint64_t>(batch.begin(), batch.end()).size(), 500u);
      for (const uint64_t id : batch) ASSERT_LT(id, 4000u);
    }
    EXPECT_NE(batches[0], batches[1]);
    EXPECT_EQ(batches, MakeIdBatches(500, 4000, distribution));
  }
}

TEST(IdBatchesTest, ZipfBatchesShareTheirCommonIdsAndUniformOnesDoNot) {
  const auto common = [](PsDistribution distribution) {
    const auto batches = MakeIdBatches(1000, 100000, distribution);
    const std::set<uint64_t> first(batches[0].begin(), batches[0].end());
    int both = 0;
    for (const uint64_t id : batches[1]) both += static_cast<int>(first.count(id));
    return both;
  };
  EXPECT_LT(common(PsDistribution::kUniform), 50);
  EXPECT_GT(common(PsDistribution::kZipf), 150);
}

}  // namespace
}  // namespace tandem::bench
