// SPDX-License-Identifier: Apache-2.0
// The state machine of the rendezvous for nodes whose death does not end the round.

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/rendezvous/state.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RendezvousOptions Limits(int least, int most, int restarts = 5) {
  RendezvousOptions options;
  options.min_nodes = least;
  options.max_nodes = most;
  options.max_restarts = restarts;
  return options;
}

Node WorkerNode(const std::string& id, int node_rank = -1) {
  Node node;
  node.id = id;
  node.host = absl::StrCat("host-", id);
  node.node_rank = node_rank;
  node.processes = {{"worker", 2}};
  return node;
}

Node ServerNode(const std::string& id, int node_rank = -1, int servers = 1) {
  Node node = WorkerNode(id, node_rank);
  node.processes = {{"ps", servers}, {"ps followers", servers}};
  node.commands = {{"ps", 7}, {"ps followers", 7}};
  node.replaceable = true;
  return node;
}

// A running round of a worker node "w" and two server nodes "s" and "t".
class ReplaceableStateTest : public ::testing::Test {
 protected:
  ReplaceableStateTest() { Begin({WorkerNode("w"), ServerNode("s"), ServerNode("t")}); }
  void Begin(const std::vector<Node>& nodes) {
    state_ = NewState(options_);
    for (const Node& node : nodes) TANDEM_EXPECT_OK(AddNode(node, options_, &state_));
    BeginRound(&state_);
  }
  absl::Status Add(const Node& node) { return AddNode(node, options_, &state_); }
  std::vector<std::string> Ids() const {
    std::vector<std::string> ids;
    for (const Node& node : RoundOf(state_, "w").nodes) ids.push_back(node.id);
    return ids;
  }
  std::vector<int> Absent() const { return RoundOf(state_, "w").absent; }
  bool Runs() const { return state_.phase() == RendezvousState::RUNNING && state_.epoch() == 1; }

  const RendezvousOptions options_ = Limits(3, 3);
  RendezvousState state_;
};

TEST_F(ReplaceableStateTest, ItsDeathLeavesTheRoundRunningAndCountsNoRestart) {
  const RendezvousState before = state_;
  ExpireNode("s", "has been silent for 5s", &state_);
  EXPECT_TRUE(Runs());
  EXPECT_EQ(state_.restarts(), 0);
  EXPECT_THAT(Ids(), ElementsAre("w", "s", "t"));
  EXPECT_THAT(Absent(), ElementsAre(1));
  const std::vector<NodeChange> changes = ChangesBetween(before, state_);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].index, 1);
  EXPECT_TRUE(changes[0].absent);
  EXPECT_EQ(changes[0].text, "node s (host-s) has been silent for 5s");
  const RendezvousState once = state_;
  ExpireNode("s", "has been silent for 9s", &state_);  // every other node detects it
  EXPECT_EQ(state_.SerializeAsString(), once.SerializeAsString());
}

TEST_F(ReplaceableStateTest, ASuccessorGetsTheSamePlaceAndTheNextProcessRestarts) {
  ExpireNode("s", "is dead", &state_);
  const RendezvousState before = state_;
  TANDEM_ASSERT_OK(Add(ServerNode("s2")));
  EXPECT_TRUE(Runs());
  EXPECT_THAT(Ids(), ElementsAre("w", "s2", "t"));
  EXPECT_THAT(Absent(), IsEmpty());
  EXPECT_EQ(RoundOf(state_, "s2").group_rank, 1);
  EXPECT_EQ(RoundOf(state_, "s2").process_restarts, 1);
  EXPECT_EQ(ChangesBetween(before, state_)[0].text, "node s2 (host-s2) takes the place of node s (host-s)");
  EXPECT_EQ(state_.restarts(), 0);
  // Processes that the second life has restarted alone count as well.
  RecordRestarts("s2", 1, 4, &state_);
  RecordRestarts("s2", 1, 3, &state_);
  RemoveNode("s2", &state_);
  EXPECT_THAT(Absent(), ElementsAre(1));
  TANDEM_ASSERT_OK(Add(ServerNode("s3")));
  EXPECT_EQ(RoundOf(state_, "s3").process_restarts, 5);
}

TEST_F(ReplaceableStateTest, AnAbsenceTooShortToBeSeenIsReportedWithTheReturn) {
  const RendezvousState before = state_;
  ExpireNode("s", "has been silent for 5s", &state_);
  TANDEM_ASSERT_OK(Add(ServerNode("s2")));
  EXPECT_EQ(ChangesBetween(before, state_)[0].text,
            "node s2 (host-s2) takes the place of node s (host-s), which has been silent for 5s");
  ExpireNode("s2", "has been silent for 6s", &state_);
  EXPECT_EQ(ChangesBetween(before, state_)[0].text, "node s2 (host-s2) has been silent for 6s");
  EXPECT_THAT(ChangesBetween(state_, state_), IsEmpty());
}

TEST_F(ReplaceableStateTest, NothingDoneInTheNameOfAnEarlierHolderAffectsItsSuccessor) {
  ExpireNode("s", "is dead", &state_);
  // The node was only cut off. Until another one has its place, it is absent for all that it says.
  FinishNode("s", 1, &state_);
  RecordRestarts("s", 1, 9, &state_);
  EXPECT_FALSE(FindMember(state_, "s")->finished());
  TANDEM_ASSERT_OK(Add(ServerNode("s2")));
  const RendezvousState before = state_;
  ExpireNode("s", "is dead", &state_);
  RemoveNode("s", &state_);
  FinishNode("s", 1, &state_);
  RecordRestarts("s", 1, 9, &state_);
  EXPECT_EQ(state_.SerializeAsString(), before.SerializeAsString());
  EXPECT_EQ(FindMember(state_, "s"), nullptr);
}

TEST_F(ReplaceableStateTest, AJoinWhoseAnswerWasLostMayBeRepeated) {
  ExpireNode("s", "is dead", &state_);
  for (int i = 0; i < 2; ++i) {
    TANDEM_ASSERT_OK(Add(ServerNode("s2")));
    EXPECT_TRUE(Runs());
    EXPECT_THAT(Ids(), ElementsAre("w", "s2", "t"));
  }
  // A node that finds out that it is absent takes its place again, if nobody else has.
  ExpireNode("s2", "is dead", &state_);
  const RendezvousState before = state_;
  TANDEM_ASSERT_OK(Add(ServerNode("s2")));
  EXPECT_EQ(ChangesBetween(before, state_)[0].text, "node s2 (host-s2) is back");
  EXPECT_THAT(Absent(), IsEmpty());
}

TEST_F(ReplaceableStateTest, TwoMayBeAbsentAndEachPlaceIsGivenOnce) {
  ExpireNode("t", "is dead", &state_);
  ExpireNode("s", "is dead", &state_);
  EXPECT_TRUE(Runs());
  EXPECT_THAT(Absent(), ElementsAre(1, 2));
  Node successor = ServerNode("x");
  successor.host = "host-t";  // the same machine: its disks and caches may know the job
  TANDEM_ASSERT_OK(Add(successor));
  EXPECT_THAT(Ids(), ElementsAre("w", "s", "x"));
  TANDEM_ASSERT_OK(Add(ServerNode("y")));
  EXPECT_THAT(Ids(), ElementsAre("w", "y", "x"));
  TANDEM_ASSERT_OK(Add(ServerNode("z")));  // a spare
  EXPECT_THAT(Ids(), ElementsAre("w", "y", "x"));
}

TEST_F(ReplaceableStateTest, ASpareThatFitsTakesThePlaceAtOnce) {
  TANDEM_ASSERT_OK(Add(WorkerNode("a worker")));
  TANDEM_ASSERT_OK(Add(ServerNode("spare")));
  TANDEM_ASSERT_OK(Add(ServerNode("later spare")));
  ExpireNode("t", "is dead", &state_);
  EXPECT_TRUE(Runs());
  EXPECT_THAT(Ids(), ElementsAre("w", "s", "spare"));
  EXPECT_THAT(Absent(), IsEmpty());
  EXPECT_EQ(state_.members_size(), 5);
  EXPECT_FALSE(FindMember(state_, "later spare")->in_round());
}

TEST_F(ReplaceableStateTest, TheFirstNodeIsNotReplaceableBecauseItServesTheStore) {
  Begin({ServerNode("s", 0), WorkerNode("w", 1), ServerNode("t", 2)});
  EXPECT_EQ(Ids()[0], "s");
  ExpireNode("s", "is dead", &state_);
  EXPECT_EQ(state_.phase(), RendezvousState::GATHERING);
  EXPECT_EQ(state_.restarts(), 1);
}

TEST_F(ReplaceableStateTest, WithTheStoreInEtcdTheFirstNodeIsReplaceableAsWell) {
  Node first = ServerNode("s"), second = ServerNode("t"), third = ServerNode("u");
  for (Node* node : {&first, &second, &third}) node->store = kStoreInEtcd;
  Begin({first, second, third});
  ExpireNode("s", "has been silent for 5s", &state_);
  EXPECT_TRUE(Runs());
  const Round round = RoundOf(state_, "t");
  EXPECT_THAT(round.absent, ElementsAre(0));
  EXPECT_EQ(round.Leader(), 1) << "the first that is not absent";
  Node successor = ServerNode("v");
  successor.store = kStoreInEtcd;
  TANDEM_ASSERT_OK(Add(successor));
  EXPECT_EQ(RoundOf(state_, "t").nodes[0].id, "v");
  EXPECT_EQ(RoundOf(state_, "t").Leader(), 0);
}

TEST_F(ReplaceableStateTest, TheJobWaitsForTheWorkOfAnAbsentNode) {
  Node worker = ServerNode("x");
  worker.has_work = true;
  Begin({WorkerNode("w"), worker, ServerNode("t")});
  ExpireNode("x", "has been silent for 5s", &state_);
  for (const char* id : {"w", "t"}) FinishNode(id, 1, &state_);
  EXPECT_TRUE(Runs());
  worker.id = "y";
  TANDEM_ASSERT_OK(Add(worker));
  EXPECT_TRUE(Runs());
  FinishNode("y", 1, &state_);
  EXPECT_EQ(state_.phase(), RendezvousState::CLOSED);
  EXPECT_FALSE(state_.failed());
}

TEST_F(ReplaceableStateTest, ANodeThatDiesAfterItsWorkIsNotWaitedFor) {
  Node worker = ServerNode("x"), other = ServerNode("y");
  worker.has_work = other.has_work = true;
  Begin({WorkerNode("w"), worker, other});
  FinishNode("x", 1, &state_);
  ExpireNode("x", "has been silent for 5s", &state_);
  FinishNode("w", 1, &state_);
  EXPECT_TRUE(Runs());
  FinishNode("y", 1, &state_);
  EXPECT_EQ(state_.phase(), RendezvousState::CLOSED);
}

TEST_F(ReplaceableStateTest, AmongNodesWithoutARankTheFirstIsOneThatIsNotReplaceable) {
  Begin({ServerNode("s"), ServerNode("t"), WorkerNode("w")});
  EXPECT_THAT(Ids(), ElementsAre("w", "s", "t"));
}

TEST_F(ReplaceableStateTest, AnyOtherDeathEndsTheRoundAndForgetsAbsentNodes) {
  ExpireNode("s", "is dead", &state_);
  ExpireNode("w", "is dead", &state_);
  EXPECT_EQ(state_.phase(), RendezvousState::GATHERING);
  EXPECT_EQ(state_.restarts(), 1);
  EXPECT_EQ(FindMember(state_, "s"), nullptr);
  // A launcher that comes back now joins the next round.
  for (const Node& node : {ServerNode("s2"), ServerNode("t")}) TANDEM_ASSERT_OK(Add(node));
  EXPECT_FALSE(HasEnough(state_));
  TANDEM_ASSERT_OK(Add(WorkerNode("w")));
  EXPECT_TRUE(HasAll(state_));
  BeginRound(&state_);
  EXPECT_EQ(state_.epoch(), 2);
  EXPECT_EQ(RoundOf(state_, "s2").process_restarts, 0);
}

TEST_F(ReplaceableStateTest, ASuccessorWhoseRoundEndsAtOnceWaitsForTheNext) {
  ExpireNode("s", "is dead", &state_);
  TANDEM_ASSERT_OK(Add(ServerNode("s2")));
  RestartRound(1, "worker/0 has failed", 1, &state_);
  EXPECT_FALSE(FindMember(state_, "s2")->joined());
  EXPECT_FALSE(HasAll(state_));
  for (const Node& node : {WorkerNode("w"), ServerNode("s2"), ServerNode("t")}) TANDEM_ASSERT_OK(Add(node));
  BeginRound(&state_);
  EXPECT_THAT(Ids(), ElementsAre("w", "s2", "t"));
  EXPECT_EQ(state_.restarts(), 1);
}

TEST_F(ReplaceableStateTest, TheJobSucceedsWhetherTheAbsentNodeHasReturnedOrNot) {
  for (const bool told : {false, true}) {
    Begin({WorkerNode("w"), ServerNode("s"), ServerNode("t")});
    if (told) FinishNode("s", 1, &state_);  // a node without workers has nothing that must finish
    ExpireNode("s", "is dead", &state_);
    FinishNode("t", 1, &state_);
    EXPECT_TRUE(Runs());
    FinishNode("w", 1, &state_);
    EXPECT_EQ(state_.phase(), RendezvousState::CLOSED);
    EXPECT_FALSE(state_.failed());
    EXPECT_THAT(Add(ServerNode("s2")),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("all nodes have finished")));
  }
}

TEST_F(ReplaceableStateTest, ASuccessorThatDiesWhileTheJobEndsDoesNotHoldItUp) {
  FinishNode("s", 1, &state_);
  FinishNode("t", 1, &state_);
  ExpireNode("s", "is dead", &state_);
  TANDEM_ASSERT_OK(Add(ServerNode("s2")));
  FinishNode("w", 1, &state_);
  EXPECT_TRUE(Runs()) << "node s2 has not said that it has finished";
  ExpireNode("s2", "is dead", &state_);
  EXPECT_EQ(state_.phase(), RendezvousState::CLOSED);
  EXPECT_FALSE(state_.failed());
}

TEST_F(ReplaceableStateTest, AbsentNodesAloneDoNotFinishAJob) {
  Begin({ServerNode("s"), ServerNode("t"), ServerNode("u")});  // its workers are started by hand
  for (const char* id : {"t", "u"}) ExpireNode(id, "is dead", &state_);
  FinishNode("s", 1, &state_);
  EXPECT_TRUE(Runs());
}

TEST_F(ReplaceableStateTest, OtherProcessesOrCommandsAreRefusedNamingTheDifference) {
  ExpireNode("s", "is dead", &state_);
  const RendezvousState before = state_;
  EXPECT_THAT(Add(ServerNode("s2", -1, 2)),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("node s2 (host-s2)"), HasSubstr("the place of node s (host-s)"),
                             HasSubstr("it had 1 ps, 1 ps followers, and this one has 2 ps, 2 ps followers"),
                             HasSubstr("the same command"))));
  Node worker = WorkerNode("w2");
  worker.host = "host-s";
  EXPECT_THAT(Add(worker),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("this one has 2 worker")));
  Node other = ServerNode("s2");
  other.commands["ps"] = 8;
  EXPECT_THAT(Add(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("another command line for the role 'ps'")));
  other = ServerNode("s2");
  other.host = "host-s";
  other.replaceable = false;
  EXPECT_THAT(Add(other),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not started again alone")));
  EXPECT_EQ(state_.SerializeAsString(), before.SerializeAsString());
  // A node with workers on another host is a spare: the successor of a worker node may come before that is
  // missed.
  TANDEM_EXPECT_OK(Add(WorkerNode("w2")));
  EXPECT_TRUE(Runs());
  EXPECT_TRUE(FindMember(state_, "w2")->joined());
}

TEST_F(ReplaceableStateTest, NodeRanksAreKept) {
  Begin({WorkerNode("w", 0), ServerNode("s", 1), ServerNode("t", 2)});
  EXPECT_EQ(RankHolder(state_, ServerNode("x", 1)), "s");
  for (const char* id : {"s", "t"}) ExpireNode(id, "is dead", &state_);
  EXPECT_EQ(RankHolder(state_, ServerNode("x", 1)), "");
  TANDEM_ASSERT_OK(Add(ServerNode("x", 2)));
  EXPECT_THAT(Ids(), ElementsAre("w", "s", "x"));
  EXPECT_THAT(Add(ServerNode("y", 2)), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Add(ServerNode("y", 1, 2)), StatusIs(absl::StatusCode::kFailedPrecondition));
  TANDEM_ASSERT_OK(Add(ServerNode("y")));  // without a rank it gets the place that is free
  EXPECT_THAT(Ids(), ElementsAre("w", "y", "x"));
}

TEST_F(ReplaceableStateTest, InAnElasticJobItKeepsItsPlaceAndANewcomerStartsARound) {
  const RendezvousOptions elastic = Limits(1, 4);
  state_ = NewState(elastic);
  for (const Node& node : {WorkerNode("w"), ServerNode("s")})
    TANDEM_ASSERT_OK(AddNode(node, elastic, &state_));
  BeginRound(&state_);
  RemoveNode("s", &state_);
  EXPECT_TRUE(Runs());
  EXPECT_THAT(FindMember(state_, "s")->absence(), HasSubstr("has left"));
  TANDEM_ASSERT_OK(AddNode(WorkerNode("w2"), elastic, &state_));
  EXPECT_EQ(state_.phase(), RendezvousState::GATHERING);
  EXPECT_EQ(FindMember(state_, "s"), nullptr);
  EXPECT_FALSE(FindMember(state_, "w")->joined());
  EXPECT_TRUE(FindMember(state_, "w2")->joined());
  EXPECT_EQ(state_.restarts(), 0);
}

TEST_F(ReplaceableStateTest, ClosedAndGatheringJobsHaveNoAbsentNodes) {
  CloseState(/*failed=*/true, "enough", 1, &state_);
  ExpireNode("s", "is dead", &state_);
  EXPECT_FALSE(FindMember(state_, "s")->absent());
  Begin({WorkerNode("w"), ServerNode("s"), ServerNode("t")});
  RestartRound(1, "worker/0 has failed", 1, &state_);
  ExpireNode("s", "is dead", &state_);
  EXPECT_EQ(FindMember(state_, "s"), nullptr);
  EXPECT_EQ(state_.restarts(), 1);
}

// Invariants while a round runs: its indices stay 0 to n-1, each with one node; the first is never absent if
// it serves the store; only replaceable nodes are; the job does not succeed before all work is done; a place
// changes hands only while its holder is absent, and then its process_restarts grows; no restart is counted
// and no epoch begins for a replaceable node; no node that has lost its place gets it back.
TEST(ReplaceableHistoriesTest, RandomHistoriesKeepTheInvariants) {
  for (int seed = 0; seed < 500; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](int n) { return static_cast<int>(random() % n); };
    const bool in_etcd = seed % 2 == 1;
    const int least = 1 + pick(3);
    const RendezvousOptions options = Limits(least, least + pick(4), 1000);
    RendezvousState state = NewState(options);
    std::map<std::string, Node> nodes;
    std::vector<std::string> replaced;
    int next_id = 0;
    for (int step = 0; step < 200 && state.phase() != RendezvousState::CLOSED; ++step) {
      const RendezvousState before = state;
      std::string some =
          state.members_size() == 0 ? "?" : state.members(pick(state.members_size())).node().id();
      const int what = pick(9);
      if (what < 2) {
        some = absl::StrCat(next_id++);
        Node node = pick(3) == 0 ? WorkerNode(some) : ServerNode(some, -1, 1 + pick(2));
        node.host = absl::StrCat("host-", pick(3));
        node.store = in_etcd ? kStoreInEtcd : "host:1";
        node.has_work = !node.replaceable || pick(3) == 0;
        nodes[some] = node;
        (void)AddNode(node, options, &state);
      } else if (what == 2 && some != "?") {
        if (pick(4) == 0) (void)AddNode(nodes[some], options, &state);
      } else if (what == 3 || what == 4) {
        ExpireNode(some, "is dead", &state);
      } else if (what == 5) {
        if (pick(3) == 0) RemoveNode(some, &state);
      } else if (what == 6) {
        if (pick(6) == 0) RestartRound(state.epoch(), "failed", 1, &state);
        RecordRestarts(some, state.epoch(), pick(5), &state);
      } else if (what == 7) {
        if (pick(3) == 0) FinishNode(some, state.epoch(), &state);
      } else if (HasEnough(state)) {
        BeginRound(&state);
      }
      if (state.phase() == RendezvousState::CLOSED && !state.failed()) {
        for (const auto& member : state.members()) {
          ASSERT_TRUE(!member.in_round() || member.finished() || !member.node().has_work());
        }
      }
      if (state.phase() != RendezvousState::RUNNING) continue;
      std::map<int, const tandem::v1::RendezvousMember*> places;
      for (const auto& member : state.members()) {
        ASSERT_FALSE(member.absent() && !member.in_round());
        if (!member.in_round()) continue;
        ASSERT_TRUE(places.emplace(member.index(), &member).second) << "two nodes in one place";
        ASSERT_FALSE(member.absent() && !member.node().replaceable());
        ASSERT_FALSE(member.absent() && member.index() == 0 && !in_etcd);
      }
      ASSERT_EQ(places.rbegin()->first, static_cast<int>(places.size()) - 1);
      if (before.phase() != RendezvousState::RUNNING || before.epoch() != state.epoch()) continue;
      ASSERT_EQ(state.restarts(), before.restarts());
      for (const auto& member : before.members()) {
        if (!member.in_round()) continue;
        const auto* now = places.at(member.index());
        ASSERT_GE(now->process_restarts(), member.process_restarts());
        if (now->node().id() == member.node().id()) continue;
        ASSERT_GT(now->process_restarts(), member.process_restarts());
        ASSERT_EQ(std::count(replaced.begin(), replaced.end(), now->node().id()), 0);
        replaced.push_back(member.node().id());
      }
    }
  }
}

}  // namespace
}  // namespace tandem::cluster
