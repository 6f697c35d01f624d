// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/grouping.h"

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"

namespace tandem::ps {
namespace {

using ::testing::IsEmpty;

// Checks everything that Grouping promises.
void ExpectGrouped(const Grouping& grouping, const std::vector<uint64_t>& ids, uint32_t num_buckets) {
  ASSERT_EQ(grouping.items().size(), ids.size());
  std::vector<bool> seen(ids.size(), false);
  uint32_t end = 0;
  int64_t last_bucket = -1;
  for (const Grouping::Group& group : grouping.groups()) {
    ASSERT_GT(static_cast<int64_t>(group.bucket), last_bucket);
    ASSERT_EQ(group.begin, end);
    ASSERT_GT(group.end, group.begin);
    for (uint32_t k = group.begin; k < group.end; ++k) {
      const Grouping::Item& item = grouping.items()[k];
      ASSERT_EQ(item.id, ids[item.position]);
      ASSERT_EQ(item.hash, Mix64(item.id));
      ASSERT_EQ(BucketOf(item.id, num_buckets), group.bucket);
      ASSERT_TRUE(k == group.begin || item.position > grouping.items()[k - 1].position);
      ASSERT_FALSE(seen[item.position]);
      seen[item.position] = true;
    }
    last_bucket = group.bucket;
    end = group.end;
  }
  EXPECT_EQ(end, ids.size());
}

TEST(GroupingTest, NoIdsMakeNoGroups) {
  Grouping grouping;
  grouping.Run({}, 256);
  EXPECT_THAT(grouping.items(), IsEmpty());
  EXPECT_THAT(grouping.groups(), IsEmpty());
}

TEST(GroupingTest, SortsByBucketAndKeepsTheOrderWithinFewAndManyIdsAlike) {
  Grouping grouping;
  CounterRandom random(/*seed=*/1, 0);
  for (const uint32_t num_buckets : {1u, 2u, 256u, 4096u}) {
    for (const size_t n : {1, 2, 31, 32, 33, 500, 511, 512, 513, 5000}) {
      std::vector<uint64_t> ids(n);
      for (uint64_t& id : ids) id = random.Below(2 * n);  // with repetitions
      grouping.Run(ids, num_buckets);
      ExpectGrouped(grouping, ids, num_buckets);
    }
  }
}

}  // namespace
}  // namespace tandem::ps
