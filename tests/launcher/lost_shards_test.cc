// SPDX-License-Identifier: Apache-2.0
#include "launcher/lost_shards.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/plan/copies.h"

namespace tandem::launcher {
namespace {

using cluster::MemberStatus;
using ::testing::HasSubstr;

// Node 0 has a worker. Nodes 1 and 2 have a copy of each of two shards: ps/0 and ps/3, ps/1 and ps/2.
cluster::Round TwoServerNodes(std::vector<int> absent) {
  cluster::Round round;
  round.nodes = {{.id = "w", .host = "10.0.0.1", .processes = {{"worker", 1}}},
                 {.id = "a", .host = "10.0.0.2", .processes = {{"ps", 1}, {kFollowersRole, 1}}},
                 {.id = "b", .host = "10.0.0.3", .processes = {{"ps", 1}, {kFollowersRole, 1}}}};
  round.absent = std::move(absent);
  return round;
}

MemberStatus MemberSilentFor(const std::string& name, int seconds, bool left = false) {
  return {.name = name, .lease = absl::Seconds(10), .silent = absl::Seconds(seconds), .left = left};
}

TEST(LostShardsTest, AShardWithACopyOnAPresentNodeIsNotLost) {
  for (const std::vector<int>& absent : {std::vector<int>{}, {1}, {2}}) {
    const LostShards lost = FindLostShards(TwoServerNodes(absent), {});
    EXPECT_EQ(lost.failure, "");
    EXPECT_EQ(lost.look_again, absl::InfiniteDuration());
  }
}

TEST(LostShardsTest, AShardIsLostWhenTheLeasesOfAllItsMembersAreOver) {
  const cluster::Round round = TwoServerNodes({1, 2});
  LostShards lost = FindLostShards(
      round, {MemberSilentFor("ps/0", 7), MemberSilentFor("ps/1", 6), MemberSilentFor("ps/2", 8),
              MemberSilentFor("ps/3", 7), MemberSilentFor("worker/0", 1)});
  EXPECT_EQ(lost.failure, "");
  EXPECT_EQ(lost.look_again, absl::Seconds(3) + absl::Milliseconds(1));  // ps/0, of shard 0
  lost = FindLostShards(round, {MemberSilentFor("ps/0", 10), MemberSilentFor("ps/1", 9),
                                MemberSilentFor("ps/2", 11), MemberSilentFor("ps/3", 10)});
  EXPECT_EQ(lost.failure, "shard 0 of 2 has no copy left: absent are node a (10.0.0.2), node b (10.0.0.3)");
  // No member at all: the nodes died before their servers had begun.
  EXPECT_THAT(FindLostShards(round, {}).failure, HasSubstr("shard 0 of 2"));
}

TEST(LostShardsTest, ACopyThatWasStartedByHandKeepsItsShard) {
  const LostShards lost = FindLostShards(
      TwoServerNodes({1, 2}), {MemberSilentFor("ps/4", 1), MemberSilentFor("ps/5", 1, /*left=*/true)});
  EXPECT_THAT(lost.failure, HasSubstr("shard 1 of 2"));
  EXPECT_EQ(lost.look_again, absl::Seconds(9) + absl::Milliseconds(1));
}

}  // namespace
}  // namespace tandem::launcher
