// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/copies.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Checks that each copy of each shard is on exactly one process, and returns the nodes of each shard.
std::map<int, std::multiset<int>> NodesOfShards(const std::vector<int>& servers, int followers) {
  std::map<int, std::multiset<int>> nodes;
  std::set<std::pair<int, int>> seen;
  int all = 0;
  for (size_t node = 0; node < servers.size(); ++node) {
    all += servers[node];
    for (int i = 0; i < servers[node] * (followers + 1); ++i) {
      const CopyPlace place = PlaceCopy(servers, static_cast<int>(node), i);
      EXPECT_TRUE(seen.insert({place.shard, place.copy}).second);
      EXPECT_EQ(place.copy, i / servers[node]);
      nodes[place.shard].insert(static_cast<int>(node));
    }
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(all * (followers + 1)));
  EXPECT_EQ(nodes.size(), static_cast<size_t>(all));
  if (all > 0) {
    EXPECT_EQ(nodes.rbegin()->first, all - 1);
  }
  return nodes;
}

TEST(CopiesTest, TheFirstCopiesAreWhereServersWithoutFollowersWouldBe) {
  const std::vector<int> servers = {2, 0, 1};
  EXPECT_EQ(PlaceCopy(servers, 0, 1), (CopyPlace{.shard = 1, .copy = 0}));
  EXPECT_EQ(PlaceCopy(servers, 2, 0), (CopyPlace{.shard = 2, .copy = 0}));
}

TEST(CopiesTest, EachCopyHasOneProcessAndCopiesAreOnDifferentNodesIfNoNodeHasTooMany) {
  for (const std::vector<int>& servers : std::vector<std::vector<int>>{{1},
                                                                       {3},
                                                                       {1, 1},
                                                                       {2, 2},
                                                                       {1, 2, 3},
                                                                       {2, 0, 2},
                                                                       {1, 1, 1},
                                                                       {4, 1, 1},
                                                                       {2, 1, 2, 1},
                                                                       {5, 3, 2, 4, 1}}) {
    int all = 0, most = 0;
    for (const int count : servers) {
      all += count;
      most = std::max(most, count);
    }
    for (int followers = 0; followers <= 3; ++followers) {
      bool twice = false;
      for (const auto& [shard, nodes] : NodesOfShards(servers, followers)) {
        twice = twice || std::set<int>(nodes.begin(), nodes.end()).size() < nodes.size();
      }
      EXPECT_EQ(ShardsTwiceOnANode(servers, followers).empty(), !twice);
      if (most * (followers + 1) <= all) {
        EXPECT_FALSE(twice) << ::testing::PrintToString(servers) << " with " << followers << " followers";
      }
    }
  }
}

TEST(CopiesTest, ShardsWithSeveralCopiesOnOneNodeAreNamed) {
  EXPECT_THAT(ShardsTwiceOnANode({2}, 1), ElementsAre(0, 1));
  EXPECT_THAT(ShardsTwiceOnANode({1, 1}, 2), ElementsAre(0, 1));
  EXPECT_THAT(ShardsTwiceOnANode({1, 1}, 1), IsEmpty());
  EXPECT_THAT(ShardsTwiceOnANode({3}, 0), IsEmpty());
}

TEST(CopiesTest, ShardsAreOnlyOnCertainNodesIfAllTheirCopiesAre) {
  // Copy 0 of shard n is on node n + 1, copy 1 on the node before.
  const std::vector<int> servers = {0, 1, 1, 1};
  EXPECT_THAT(ShardsOnlyOn({}, servers, 1), IsEmpty());
  EXPECT_THAT(ShardsOnlyOn({1}, servers, 1), IsEmpty());
  for (const std::vector<int>& nodes : {std::vector<int>{1, 2}, {2, 3}, {1, 3}}) {
    EXPECT_EQ(ShardsOnlyOn(nodes, servers, 1).size(), 1u);
    EXPECT_THAT(ShardsOnlyOn(nodes, servers, 2), IsEmpty());
  }
  EXPECT_THAT(ShardsOnlyOn({1, 2, 3}, servers, 2), ElementsAre(0, 1, 2));
  EXPECT_THAT(ShardsOnlyOn({1}, {0, 1}, 1), ElementsAre(0));
  EXPECT_THAT(ShardsOnlyOn({1}, {1, 0}, 0), IsEmpty());
  EXPECT_THAT(ShardsOnlyOn({0, 1}, {0, 0}, 0), IsEmpty());
}

TEST(CopiesTest, NodesMustAgreeOnTheNumberOfFollowers) {
  cluster::Round round;
  round.nodes = {{.id = "a", .host = "10.0.0.1", .processes = {{"ps", 2}, {kFollowersRole, 2}}},
                 {.id = "b", .host = "10.0.0.2", .processes = {{"worker", 4}}},
                 {.id = "c", .host = "10.0.0.3", .processes = {{"ps", 1}, {kFollowersRole, 1}}}};
  TANDEM_EXPECT_OK(CheckFollowers(round));
  EXPECT_EQ(FollowersOf(round), 1);
  EXPECT_THAT(ServersByNode(round), ElementsAre(2, 0, 1));
  round.nodes[2].processes = {{"ps", 1}};
  EXPECT_THAT(CheckFollowers(round), StatusIs(absl::StatusCode::kFailedPrecondition,
                                              AllOf(HasSubstr("10.0.0.1"), HasSubstr("--ps-followers"))));
}

}  // namespace
}  // namespace tandem::launcher
