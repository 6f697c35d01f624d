// SPDX-License-Identifier: Apache-2.0
// The state machine of the rendezvous, without a store.

#include "cluster/rendezvous/state.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Node NodeInState(const std::string& id, int node_rank = -1) {
  Node node;
  node.id = id;
  node.host = absl::StrCat("10.0.0.", id);
  node.node_rank = node_rank;
  node.processes = {{"worker", 2}};
  return node;
}

RendezvousOptions StateBetween(int least, int most, int restarts = 100) {
  RendezvousOptions options;
  options.min_nodes = least;
  options.max_nodes = most;
  options.max_restarts = restarts;
  return options;
}

std::vector<std::string> Ids(const Round& round) {
  std::vector<std::string> ids;
  for (const Node& node : round.nodes) ids.push_back(node.id);
  return ids;
}

// Begins a round and returns its ids.
std::vector<std::string> Begun(RendezvousState* state) {
  BeginRound(state);
  for (const auto& member : state->members()) {
    if (member.in_round()) return Ids(RoundOf(*state, member.node().id()));
  }
  return {};
}

TEST(RendezvousStateTest, SurvivorsKeepTheirOrderAndNewcomersFollow) {
  const RendezvousOptions options = StateBetween(2, 4);
  RendezvousState state = NewState(options);
  for (const char* id : {"1", "2", "3"}) TANDEM_ASSERT_OK(AddNode(NodeInState(id), options, &state));
  EXPECT_THAT(Begun(&state), ElementsAre("1", "2", "3"));
  ExpireNode("2", "is dead", &state);
  EXPECT_EQ(state.restarts(), 1);
  for (const char* id : {"4", "3"}) TANDEM_ASSERT_OK(AddNode(NodeInState(id), options, &state));
  EXPECT_FALSE(HasAll(state)) << "node 1 lives and has not come";
  TANDEM_ASSERT_OK(AddNode(NodeInState("1"), options, &state));
  EXPECT_TRUE(HasAll(state));
  EXPECT_THAT(Begun(&state), ElementsAre("1", "3", "4"));
  EXPECT_EQ(state.epoch(), 2);
}

TEST(RendezvousStateTest, NodeRanksAreKeptAndPlacedBeforeOthers) {
  const RendezvousOptions options = StateBetween(3, 4);
  RendezvousState state = NewState(options);
  TANDEM_ASSERT_OK(AddNode(NodeInState("a", 2), options, &state));
  TANDEM_ASSERT_OK(AddNode(NodeInState("b"), options, &state));
  TANDEM_ASSERT_OK(AddNode(NodeInState("c", 0), options, &state));
  EXPECT_THAT(Begun(&state), ElementsAre("c", "b", "a"));
  EXPECT_THAT(
      AddNode(NodeInState("d", 2), options, &state),
      StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("node rank 2"), HasSubstr("node a"))));
}

TEST(RendezvousStateTest, RanksPastTheNumberOfNodesAreOrderedOnly) {
  const RendezvousOptions options = StateBetween(2, 4);
  RendezvousState state = NewState(options);
  TANDEM_ASSERT_OK(AddNode(NodeInState("x", 3), options, &state));
  TANDEM_ASSERT_OK(AddNode(NodeInState("y", 1), options, &state));
  EXPECT_THAT(Begun(&state), ElementsAre("y", "x"));
}

TEST(RendezvousStateTest, AQuickRejoinDoesNotHideADeath) {
  const RendezvousOptions options = StateBetween(1, 3, /*restarts=*/1);
  RendezvousState state = NewState(options);
  for (const char* id : {"1", "2"}) TANDEM_ASSERT_OK(AddNode(NodeInState(id), options, &state));
  (void)Begun(&state);
  // Node 2 was killed, and comes back before its death is detected.
  TANDEM_ASSERT_OK(AddNode(NodeInState("2b"), options, &state));
  EXPECT_EQ(state.phase(), RendezvousState::GATHERING);
  EXPECT_EQ(state.restarts(), 0);
  TANDEM_ASSERT_OK(AddNode(NodeInState("1"), options, &state));
  EXPECT_FALSE(HasAll(state));
  ExpireNode("2", "is dead", &state);
  EXPECT_EQ(state.restarts(), 1);
  EXPECT_THAT(Begun(&state), ElementsAre("1", "2b"));
  ExpireNode("2b", "is dead", &state);
  EXPECT_EQ(state.phase(), RendezvousState::CLOSED);
  EXPECT_TRUE(state.failed());
  EXPECT_THAT(state.reason(), AllOf(HasSubstr("node 2b"), HasSubstr("max_restarts 1")));
}

TEST(RendezvousStateTest, FailuresBetweenTwoRoundsCountOnce) {
  const RendezvousOptions options = StateBetween(1, 4);
  RendezvousState state = NewState(options);
  for (const char* id : {"1", "2", "3", "4"}) TANDEM_ASSERT_OK(AddNode(NodeInState(id), options, &state));
  (void)Begun(&state);
  RestartRound(1, "worker/0 ended with 1", 1, &state);
  RestartRound(1, "worker/5 ended with 1", 1, &state);
  ExpireNode("2", "is dead", &state);
  ExpireNode("3", "is dead", &state);
  EXPECT_EQ(state.restarts(), 1);
  EXPECT_EQ(EndEvent(state, 1).reason, "worker/0 ended with 1");
  EXPECT_TRUE(EndEvent(state, 1).failed);
  RestartRound(0, "from a past epoch", 1, &state);
  EXPECT_EQ(state.restarts(), 1);
}

TEST(RendezvousStateTest, TheJobSucceedsWhenAllNodesHaveFinished) {
  const RendezvousOptions options = StateBetween(2, 3);
  RendezvousState state = NewState(options);
  for (const char* id : {"1", "2"}) TANDEM_ASSERT_OK(AddNode(NodeInState(id), options, &state));
  (void)Begun(&state);
  FinishNode("1", 1, &state);
  ExpireNode("1", "is silent", &state);  // no death: it had finished
  TANDEM_ASSERT_OK(AddNode(NodeInState("3"), options, &state));
  EXPECT_EQ(state.phase(), RendezvousState::RUNNING) << "a newcomer does not disturb a job that is finishing";
  FinishNode("2", 1, &state);
  EXPECT_EQ(state.phase(), RendezvousState::CLOSED);
  EXPECT_FALSE(state.failed());
  EXPECT_THAT(AddNode(NodeInState("4"), options, &state),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("all nodes have finished")));
}

TEST(RendezvousStateTest, OtherOptionsAreRefusedNamingBoth) {
  RendezvousState state = NewState(StateBetween(2, 3));
  EXPECT_THAT(AddNode(NodeInState("1"), StateBetween(2, 4), &state),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("2 to 3 nodes"), HasSubstr("2 to 4 nodes"),
                             HasSubstr("this node (1 on 10.0.0.1)"))));
  EXPECT_THAT(AddNode(NodeInState("1"), StateBetween(2, 3, 7), &state),
              StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(state.members_size(), 0);
}

// Invariants: a round has between min and max nodes, all of which had joined it; epochs grow by one;
// survivors keep their relative order and the first keeps index 0; restarts are the rounds that ended in
// failure; none exceeds the limit.
TEST(RendezvousStateTest, RandomHistoriesKeepTheInvariants) {
  for (int seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % n); };
    const int least = 1 + pick(3);
    const RendezvousOptions options = StateBetween(least, least + pick(4), pick(4) == 0 ? pick(10) : 1000);
    RendezvousState state = NewState(options);
    std::vector<std::string> last_round;
    int64_t restarts = 0;
    bool counted = true;
    int next_id = 0;
    for (int step = 0; step < 200 && state.phase() != RendezvousState::CLOSED; ++step) {
      const RendezvousState before = state;
      std::string some =
          state.members_size() == 0 ? "?" : state.members(pick(state.members_size())).node().id();
      switch (pick(7)) {
        case 0:
          some = absl::StrCat(next_id++);
          [[fallthrough]];
        case 1:
        case 2:
          if (state.phase() == RendezvousState::RUNNING && pick(4) != 0) break;
          if (some == "?") break;
          TANDEM_ASSERT_OK(AddNode(NodeInState(some), options, &state));
          break;
        case 3:
          ExpireNode(some, "is dead", &state);
          break;
        case 4:
          if (pick(3) == 0) RemoveNode(some, &state);
          break;
        case 5:
          if (pick(3) == 0) RestartRound(state.epoch() - pick(2), "failed", 1, &state);
          break;
        case 6:
          if (!HasEnough(state)) break;
          const std::vector<std::string> now = Begun(&state);
          ASSERT_GE(static_cast<int>(now.size()), options.min_nodes);
          ASSERT_LE(static_cast<int>(now.size()), options.max_nodes);
          ASSERT_EQ(state.epoch(), before.epoch() + 1);
          for (const std::string& id : now) ASSERT_TRUE(FindMember(before, id)->joined());
          std::vector<std::string> kept, kept_before;
          for (const std::string& id : now) {
            if (std::count(last_round.begin(), last_round.end(), id) > 0) kept.push_back(id);
          }
          for (const std::string& id : last_round) {
            if (std::count(now.begin(), now.end(), id) > 0) kept_before.push_back(id);
          }
          ASSERT_EQ(kept, kept_before);
          if (!kept.empty() && kept[0] == last_round[0]) {
            ASSERT_EQ(now[0], last_round[0]);
          }
          last_round = now;
          counted = false;
          break;
      }
      ASSERT_GE(state.epoch(), before.epoch());
      if (state.restarts() != before.restarts()) {
        ASSERT_FALSE(counted) << "twice for one round";
        counted = true;
        ++restarts;
      }
      ASSERT_EQ(state.restarts(), restarts);
      ASSERT_LE(state.restarts(), options.max_restarts);
    }
  }
}

TEST(RendezvousStateTest, AReasonOfAnyBytesLeavesADocumentThatAllCanRead) {
  const RendezvousOptions options = StateBetween(1, 1, /*restarts=*/1);
  RendezvousState state = NewState(options);
  // A program's last output in Latin-1; and the limit of a reason's length falls into a character.
  const std::string words = "f\xFCnf: " + std::string(5000, '\xE9');
  RendezvousState read;
  for (int round = 0; round < 2; ++round) {
    TANDEM_ASSERT_OK(AddNode(NodeInState("1"), options, &state));
    BeginRound(&state);
    RestartRound(state.epoch(), words, 1, &state);
    ASSERT_TRUE(read.ParseFromString(state.SerializeAsString())) << "round " << round;
    EXPECT_THAT(EndEvent(read, state.epoch()).reason, HasSubstr("nf: "));
  }
  EXPECT_EQ(read.phase(), RendezvousState::CLOSED);
}

TEST(RendezvousStateTest, ANodeThatWouldMakeTheDocumentUnreadableIsRefused) {
  const RendezvousOptions options = StateBetween(1, 1);
  Node bad = NodeInState("1");
  bad.host = "caf\xE9";
  EXPECT_THAT(CheckNode(bad, options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("caf\\xe9")));
  bad = NodeInState("1");
  bad.processes = {{"\xE9", 1}};
  EXPECT_THAT(CheckNode(bad, options), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\\xe9")));
}

TEST(RoundStoreTest, ARoundInEtcdHasKeysOfItsOwnBesideTheRendezvous) {
  EXPECT_EQ(RoundStore("10.0.0.1:7", "etcd://a:1/p/job", 0xab, 3), "10.0.0.1:7");
  EXPECT_EQ(RoundStore(kStoreInEtcd, "etcd://a:1,b:1/p/job", 0xab, 3),
            "etcd://a:1,b:1/p/job-00000000000000ab-3?lease=30");
  EXPECT_EQ(RoundStore(kStoreInEtcd, "etcds://u@a:1/p/job?ca=/f&lease=60", 0xab, 4),
            "etcds://u@a:1/p/job-00000000000000ab-4?ca=/f&lease=60");
}

}  // namespace
}  // namespace tandem::cluster
