// SPDX-License-Identifier: Apache-2.0
#include "ps/shard_map.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;

TEST(ShardMapTest, EvenGivesServersRunsOfBucketsThatDifferByAtMostOne) {
  for (const uint32_t servers : {1u, 2u, 3u, 5u, 7u, 16u, 255u, 256u}) {
    const ShardMap map = ShardMap::Even(servers);
    ASSERT_EQ(map.num_buckets(), kDefaultBuckets);
    ASSERT_EQ(map.num_servers(), servers);
    std::vector<uint32_t> count(servers, 0);
    for (const uint32_t owner : map.owners()) {
      ASSERT_LT(owner, servers);
      ++count[owner];
    }
    EXPECT_TRUE(std::is_sorted(map.owners().begin(), map.owners().end())) << servers;
    const auto [least, most] = std::minmax_element(count.begin(), count.end());
    EXPECT_LE(*most - *least, 1) << servers;
    EXPECT_GE(*least, 1) << servers;
  }
}

TEST(ShardMapTest, AnIdBelongsToTheServerOfItsBucket) {
  const ShardMap map({2, 0, 1, 0}, /*num_servers=*/3);
  EXPECT_THAT(map.owners(), ElementsAre(2, 0, 1, 0));
  for (uint64_t id = 0; id < 1000; ++id) {
    EXPECT_EQ(map.OwnerOf(id), map.OwnerOfBucket(BucketOf(id, 4)));
  }
}

TEST(ShardMapTest, BucketsAreTheSameOnEveryMachineAndInEveryVersion) {
  // Checkpoints and running jobs depend on these.
  EXPECT_EQ(BucketOf(0, 256), 0x39);
  EXPECT_EQ(BucketOf(1, 256), 0xec);
  EXPECT_EQ(BucketOf(~uint64_t{0}, 256), 0x77);
}

TEST(ShardMapTest, SplittingBucketsInTwoKeepsIdsOfABucketTogether) {
  for (uint64_t id = 0; id < 10000; ++id) {
    EXPECT_EQ(BucketOf(id, 512) % 256, BucketOf(id, 256));
  }
}

// The chi-squared statistic of n ids over b buckets has mean b - 1 and variance 2 (b - 1).
double ChiSquared(const std::vector<uint32_t>& count, double n) {
  const double expected = n / static_cast<double>(count.size());
  double sum = 0;
  for (const uint32_t c : count) sum += (c - expected) * (c - expected) / expected;
  return sum;
}

TEST(ShardMapTest, ConsecutiveAndStridedAndHighIdsSpreadEvenly) {
  constexpr uint32_t kIds = 256 * 1000;
  const double limit = 255 + 6 * std::sqrt(2 * 255.0);  // six standard deviations
  for (const uint64_t stride : {uint64_t{1}, uint64_t{256}, uint64_t{1000003}, uint64_t{1} << 32}) {
    std::vector<uint32_t> count(256, 0);
    for (uint64_t i = 0; i < kIds; ++i) ++count[BucketOf(i * stride, 256)];
    EXPECT_LT(ChiSquared(count, kIds), limit) << "stride " << stride;
  }
}

TEST(ShardMapTest, WithinABucketTheLowBitsOfTheHashStillSpread) {
  // Tables probe with the low bits of the hash: were they tied to the bucket, every table would be one long
  // probe.
  std::vector<uint32_t> count(256, 0);
  double n = 0;
  for (uint64_t id = 0; id < 256 * 2000; ++id) {
    if (BucketOf(id, 256) != 17) continue;
    ++count[Mix64(id) & 255];
    ++n;
  }
  EXPECT_LT(ChiSquared(count, n), 255 + 6 * std::sqrt(2 * 255.0));
}

}  // namespace
}  // namespace tandem::ps
