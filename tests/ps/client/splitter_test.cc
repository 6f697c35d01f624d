// SPDX-License-Identifier: Apache-2.0
#include "ps/client/splitter.h"

#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(SplitterTest, EveryIdGoesToItsOwnerWithItsPlace) {
  const ShardMap map = ShardMap::Even(3);
  CounterRandom random(1, 1);
  std::vector<uint64_t> ids(1000);
  for (uint64_t& id : ids) id = random();
  std::vector<ServerIds> out;
  SplitByServer(map, ids, {}, &out);
  ASSERT_EQ(out.size(), 3u);
  size_t total = 0;
  for (uint32_t s = 0; s < 3; ++s) {
    ASSERT_EQ(out[s].ids.size(), out[s].positions.size());
    EXPECT_TRUE(std::is_sorted(out[s].positions.begin(), out[s].positions.end()));
    EXPECT_THAT(out[s].offsets, IsEmpty());
    for (size_t i = 0; i < out[s].ids.size(); ++i) {
      EXPECT_EQ(out[s].ids[i], ids[out[s].positions[i]]);
      EXPECT_EQ(map.OwnerOf(out[s].ids[i]), s);
    }
    total += out[s].ids.size();
  }
  EXPECT_EQ(total, ids.size());
}

TEST(SplitterTest, BagsAreCutAlongTheServers) {
  const ShardMap map = ShardMap::Even(2);
  // Two ids of each server.
  std::vector<uint64_t> zero, one;
  for (uint64_t id = 0; zero.size() < 2 || one.size() < 2; ++id)
    (map.OwnerOf(id) == 0 ? zero : one).push_back(id);
  const std::vector<uint64_t> ids = {zero[0], one[0], zero[1], one[1]};
  const std::vector<uint32_t> offsets = {0, 3, 3, 4};  // the second bag is empty
  std::vector<ServerIds> out;
  SplitByServer(map, ids, offsets, &out);
  EXPECT_THAT(out[0].ids, ElementsAre(zero[0], zero[1]));
  EXPECT_THAT(out[0].offsets, ElementsAre(0, 2, 2, 2));
  EXPECT_THAT(out[1].ids, ElementsAre(one[0], one[1]));
  EXPECT_THAT(out[1].offsets, ElementsAre(0, 1, 1, 2));
}

TEST(SplitterTest, SegmentsAreCutAlongTheServers) {
  const ServerIds server{.ids = {10, 11, 12}, .positions = {0, 3, 4}};
  EXPECT_THAT(SplitSegments({1, 1, 3, 5, 6, 6}, server), ElementsAre(1, 1, 1, 3, 3, 3));
  EXPECT_THAT(SplitSegments({}, server), IsEmpty());
}

TEST(SplitterTest, ReusedMemoryHoldsNothingOfTheCallBefore) {
  const ShardMap map = ShardMap::Even(2);
  std::vector<ServerIds> out;
  SplitByServer(map, {1, 2, 3, 4}, {0, 4}, &out);
  SplitByServer(map, {5}, {}, &out);
  EXPECT_EQ(out[0].ids.size() + out[1].ids.size(), 1u);
  EXPECT_THAT(out[0].offsets, IsEmpty());
  EXPECT_THAT(out[1].offsets, IsEmpty());
}

}  // namespace
}  // namespace tandem::ps
