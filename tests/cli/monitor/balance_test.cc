// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/balance.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A shard with its primary on the first host and followers in sync on the others.
ShardReport Shard(uint32_t number, const std::vector<std::string>& hosts) {
  ShardReport shard{.shard = number};
  shard.placement.set_version(1);
  for (const std::string& host : hosts) {
    tandem::v1::Replica replica;
    replica.set_id(absl::StrCat(host, number));
    replica.set_address(absl::StrCat(host, ":", 7000 + number));
    CopyReport copy{.replica = replica};
    if (shard.copies.empty()) {
      *shard.placement.mutable_primary() = replica;
      copy.told.set_role(tandem::v1::REPLICA_ROLE_PRIMARY);
      copy.told.set_serving(true);
    } else {
      *shard.placement.add_in_sync() = replica;
    }
    shard.copies.push_back(copy);
  }
  return shard;
}

std::vector<std::string> Targets(const std::vector<PlannedMove>& moves) {
  std::vector<std::string> targets;
  for (const PlannedMove& move : moves)
    targets.push_back(absl::StrCat(move.shard, " to ", HostOf(move.to.address())));
  return targets;
}

TEST(BalanceTest, PrimariesMoveFromFullHostsToEmptyOnes) {
  const std::vector<ShardReport> shards = {Shard(0, {"a", "b"}), Shard(1, {"a", "c"}), Shard(2, {"a", "b"}),
                                           Shard(3, {"b", "a"})};
  const std::vector<PlannedMove> moves = PlanBalance(shards);
  EXPECT_THAT(Targets(moves), ElementsAre("1 to c"));
  EXPECT_EQ(HostsToText(shards, moves), "a: 3 primaries, then 2\nb: 1 primaries\nc: 0 primaries, then 1\n");
}

TEST(BalanceTest, AllPrimariesOnOneOfTwoHostsAreHalved) {
  EXPECT_THAT(Targets(PlanBalance(
                  {Shard(0, {"a", "b"}), Shard(1, {"a", "b"}), Shard(2, {"a", "b"}), Shard(3, {"a", "b"})})),
              ElementsAre("0 to b", "1 to b"));
}

TEST(BalanceTest, NothingMovesWithoutAFollowerInSyncOrAPrimaryThatServes) {
  std::vector<ShardReport> shards = {Shard(0, {"a", "b"}), Shard(1, {"a"}), Shard(2, {"a"})};
  shards[0].copies[0].told.set_serving(false);
  EXPECT_THAT(PlanBalance(shards), IsEmpty());
}

TEST(BalanceTest, EvenPrimariesStay) {
  EXPECT_THAT(PlanBalance({Shard(0, {"a", "b"}), Shard(1, {"b", "a"}), Shard(2, {"a", "b"})}), IsEmpty());
}

TEST(BalanceTest, APlaceIsAnAddressOrAHost) {
  EXPECT_TRUE(IsAt("10.0.0.1:7000", "10.0.0.1"));
  EXPECT_TRUE(IsAt("10.0.0.1:7000", "10.0.0.1:7000"));
  EXPECT_FALSE(IsAt("10.0.0.1:7000", "10.0.0.1:70"));
  EXPECT_FALSE(IsAt("10.0.0.11:7000", "10.0.0.1"));
}

}  // namespace
}  // namespace tandem::cli
