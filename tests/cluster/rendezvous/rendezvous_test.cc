// SPDX-License-Identifier: Apache-2.0
// The rendezvous of launchers, as threads, over real stores.

#include "cluster/rendezvous/rendezvous.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/join.h"
#include "cluster/rendezvous/state.h"
#include "cluster/store/file_store.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "tests/cluster/rendezvous/cuttable_store.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLease = absl::Seconds(2);

absl::Time Soon() { return absl::Now() + absl::Seconds(20); }

RendezvousOptions Between(int least, int most, int restarts = 10) {
  RendezvousOptions options;
  options.run_id = "job";
  options.min_nodes = least;
  options.max_nodes = most;
  options.max_restarts = restarts;
  options.last_call = absl::Milliseconds(200);
  options.join_timeout = absl::Seconds(20);
  options.lease = kLease;
  return options;
}

// Two nodes, one of which goes on alone when the other is gone. Both take part in the first round, however
// late one of them comes.
RendezvousOptions BetweenOneAndTwo(int restarts = 10) {
  RendezvousOptions options = Between(1, 2, restarts);
  options.last_call = options.join_timeout;
  return options;
}

Node NodeOf(const std::string& id, int node_rank = -1, int workers = 2) {
  Node node;
  node.id = id;
  node.host = "127.0.0.1";
  node.node_rank = node_rank;
  node.processes = {{"worker", workers}};
  return node;
}

// A launcher that joins in a thread of its own.
struct Launcher {
  Launcher(Store* base, const RendezvousOptions& options, Node node)
      : store(base), rendezvous(MakeRendezvous(&store, options).value()), node(std::move(node)) {}
  ~Launcher() {
    if (thread.joinable()) thread.join();
  }
  void Join() {
    thread = std::thread([this] { round = rendezvous->Join(node); });
  }
  absl::StatusOr<Round>& Joined() {
    thread.join();
    return round;
  }

  CuttableStore store;
  std::unique_ptr<Rendezvous> rendezvous;
  Node node;
  absl::StatusOr<Round> round;
  std::thread thread;
};

// A user must make room in a full store. It is not one that will answer soon, so launchers must not try
// again.
TEST(RendezvousTest, ANodeThatTheStoreHasNoRoomForIsToldSo) {
  MemoryStore store(StoreLimits{.keys = 1});
  TANDEM_ASSERT_OK(store.Set("filler", ""));
  const auto rendezvous = MakeRendezvous(&store, Between(1, 1)).value();
  EXPECT_THAT(rendezvous->Join(NodeOf("a")).status(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no space")));
}

TEST(RendezvousTest, AStaticJobIsOrderedByNodeRanks) {
  MemoryStore store;
  Launcher b(&store, Between(2, 2), NodeOf("b", 1, 3)), a(&store, Between(2, 2), NodeOf("a", 0));
  b.Join();
  a.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  EXPECT_EQ(a.round->epoch, 1);
  EXPECT_EQ(a.round->group_rank, 0);
  EXPECT_EQ(b.round->group_rank, 1);
  EXPECT_EQ(b.round->nodes[0].id, "a");
  EXPECT_EQ(b.round->FirstRank("worker"), 2);
  EXPECT_EQ(a.round->WorldSize("worker"), 5);
  TANDEM_ASSERT_OK(a.rendezvous->Finish(1));
  EXPECT_THAT(a.rendezvous->WaitForEvent(1, absl::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
  TANDEM_ASSERT_OK(b.rendezvous->Finish(1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, a.rendezvous->WaitForEvent(1, Soon()));
  EXPECT_EQ(end.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_FALSE(end.failed);
  EXPECT_THAT(a.rendezvous->Join(a.node),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("finished")));
}

TEST(RendezvousTest, MissingNodesAreNamedAtTheDeadline) {
  MemoryStore store;
  RendezvousOptions options = Between(3, 3);
  options.join_timeout = absl::Milliseconds(300);
  Launcher a(&store, options, NodeOf("a", 0));
  EXPECT_THAT(a.rendezvous->Join(a.node),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("1 of 3 nodes"), HasSubstr("node a"), HasSubstr("node ranks 1, 2"))));
}

TEST(RendezvousTest, ASilentNodeIsNamedAndTheOthersGoOn) {
  MemoryStore store;
  Launcher a(&store, BetweenOneAndTwo(), NodeOf("a")), b(&store, BetweenOneAndTwo(), NodeOf("b"));
  a.Join();
  b.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  b.store.Cut();
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, a.rendezvous->WaitForEvent(1, Soon()));
  EXPECT_EQ(end.kind, RendezvousEvent::Kind::kRestart);
  EXPECT_TRUE(end.failed);
  EXPECT_THAT(end.reason, AllOf(HasSubstr("node b"), HasSubstr("silent"), HasSubstr("lease 2s")));
  // The other node has detected it by itself, and earlier.
  EXPECT_THAT(
      b.rendezvous->WaitForEvent(1, Soon()),
      StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("node b"), HasSubstr("take it for dead"))));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round alone, a.rendezvous->Join(a.node));
  EXPECT_EQ(alone.epoch, 2);
  EXPECT_EQ(alone.restarts, 1);
  EXPECT_EQ(alone.nodes.size(), 1u);
  // After its return, the node may join again, behind those that stayed.
  b.store.Mend();
  b.Join();
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent joins, a.rendezvous->WaitForEvent(2, Soon()));
  EXPECT_FALSE(joins.failed);
  EXPECT_THAT(joins.reason, HasSubstr("node b"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round both, a.rendezvous->Join(a.node));
  TANDEM_ASSERT_OK(b.Joined());
  EXPECT_EQ(both.nodes[0].id, "a");
  EXPECT_EQ(both.restarts, 1);
}

TEST(RendezvousTest, AFinishedNodeThatIsSilentCausesNoMoreCallsThanALivingOne) {
  MemoryStore store;
  Launcher a(&store, Between(2, 2), NodeOf("a")), b(&store, Between(2, 2), NodeOf("b"));
  a.Join();
  b.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  TANDEM_ASSERT_OK(b.rendezvous->Finish(1));
  b.store.Cut();
  // Until its lease is over.
  EXPECT_THAT(a.rendezvous->WaitForEvent(1, absl::Now() + 1.5 * kLease),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  const int before = a.store.calls();
  EXPECT_THAT(a.rendezvous->WaitForEvent(1, absl::Now() + kLease),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // Five heartbeats in a lease, and a few calls for each.
  EXPECT_LT(a.store.calls() - before, 50);
}

TEST(RendezvousTest, ANodeStoppedBeyondItsLeaseLearnsThatTheOthersContinued) {
  MemoryStore store;
  Launcher a(&store, BetweenOneAndTwo(), NodeOf("a")), b(&store, BetweenOneAndTwo(), NodeOf("b"));
  a.Join();
  b.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  b.store.Cut();
  TANDEM_ASSERT_OK(a.rendezvous->WaitForEvent(1, Soon()));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  b.store.Mend();
  EXPECT_THAT(b.rendezvous->WaitForEvent(1, Soon()), StatusIs(absl::StatusCode::kUnavailable));
  // Reports about its old epoch change nothing.
  TANDEM_EXPECT_OK(b.rendezvous->RequestRestart(1, "too late", 3));
  TANDEM_EXPECT_OK(b.rendezvous->Finish(1));
  EXPECT_THAT(a.rendezvous->WaitForEvent(2, absl::Now() + kLease / 2),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST(RendezvousTest, ARestartOfAClosedJobHasNoEffect) {
  MemoryStore store;
  Launcher a(&store, Between(1, 1, /*restarts=*/0), NodeOf("a"));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  auto closer = MakeRendezvous(&store, Between(1, 1, /*restarts=*/0)).value();
  TANDEM_ASSERT_OK(closer->Close(/*failed=*/false, "enough", 0));
  TANDEM_EXPECT_OK(a.rendezvous->RequestRestart(1, "worker/0 ended with 3", 3));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, a.rendezvous->WaitForEvent(1, Soon()));
  EXPECT_EQ(end.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_FALSE(end.failed);
  EXPECT_EQ(end.reason, "enough");
}

TEST(RendezvousTest, LeavingIsSeenAtOnceAndCostsNoRestart) {
  MemoryStore store;
  RendezvousOptions options = BetweenOneAndTwo(/*restarts=*/0);
  options.lease = absl::Seconds(60);
  Launcher a(&store, options, NodeOf("a")), b(&store, options, NodeOf("b"));
  a.Join();
  b.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  b.rendezvous.reset();
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, a.rendezvous->WaitForEvent(1, Soon()));
  EXPECT_THAT(end.reason, AllOf(HasSubstr("node b"), HasSubstr("left")));
  EXPECT_FALSE(end.failed);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round alone, a.rendezvous->Join(a.node));
  EXPECT_EQ(alone.restarts, 0);
}

TEST(RendezvousTest, RestartsAreCountedAndTheLimitIsNamed) {
  MemoryStore store;
  Launcher a(&store, Between(1, 1, /*restarts=*/1), NodeOf("a"));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  TANDEM_ASSERT_OK(a.rendezvous->RequestRestart(1, "worker/0 ended with 3", 3));
  TANDEM_ASSERT_OK(a.rendezvous->RequestRestart(1, "worker/1 ended with 3", 3));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, a.rendezvous->WaitForEvent(1, Soon()));
  EXPECT_EQ(end.reason, "worker/0 ended with 3");
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round again, a.rendezvous->Join(a.node));
  EXPECT_EQ(again.restarts, 1);
  EXPECT_THAT(a.rendezvous->RequestRestart(2, "worker/0 ended with 4", 4),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("worker/0 ended with 4"), HasSubstr("max_restarts 1"))));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent closed, a.rendezvous->WaitForEvent(2, Soon()));
  EXPECT_EQ(closed.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_TRUE(closed.failed);
  EXPECT_EQ(closed.exit_code, 4);
}

TEST(RendezvousTest, TheExitCodeOfTheFirstFailureReachesTheOtherNodes) {
  MemoryStore store;
  Launcher a(&store, Between(2, 2), NodeOf("a")), b(&store, Between(2, 2), NodeOf("b"));
  a.Join();
  b.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  TANDEM_ASSERT_OK(b.rendezvous->Close(/*failed=*/true, "worker/3 was killed by signal 9", 137));
  TANDEM_ASSERT_OK(a.rendezvous->Close(/*failed=*/true, "worker/0 exited with code 1", 1));
  for (Launcher* node : {&a, &b}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, node->rendezvous->WaitForEvent(1, Soon()));
    EXPECT_EQ(end.reason, "worker/3 was killed by signal 9");
    EXPECT_EQ(end.exit_code, 137);
  }
}

TEST(RendezvousTest, AStopBySignalIsToldApartFromAProcessKilledByIt) {
  for (const bool stopped : {false, true}) {
    MemoryStore store;
    Launcher a(&store, Between(2, 2), NodeOf("a")), b(&store, Between(2, 2), NodeOf("b"));
    a.Join();
    b.Join();
    TANDEM_ASSERT_OK(a.Joined());
    TANDEM_ASSERT_OK(b.Joined());
    TANDEM_ASSERT_OK(stopped ? b.rendezvous->Stop("the launcher on b was stopped by SIGTERM", 143)
                             : b.rendezvous->Close(/*failed=*/true, "worker/3 was killed by signal 15", 143));
    TANDEM_ASSERT_OK(a.rendezvous->Stop("too late", 130));
    for (Launcher* node : {&a, &b}) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, node->rendezvous->WaitForEvent(1, Soon()));
      EXPECT_TRUE(end.failed);
      EXPECT_EQ(end.exit_code, 143);
      EXPECT_EQ(end.stopped, stopped);
    }
  }
}

TEST(RendezvousTest, AWaitEndsWithCancelledWhenTheNodeLeaves) {
  MemoryStore store;
  Launcher a(&store, Between(1, 2), NodeOf("a"));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  std::thread waiter(
      [&] { EXPECT_THAT(a.rendezvous->WaitForEvent(1, Soon()), StatusIs(absl::StatusCode::kCancelled)); });
  TANDEM_EXPECT_OK(a.rendezvous->Leave());
  waiter.join();
  EXPECT_THAT(a.rendezvous->WaitForEvent(1, Soon()), StatusIs(absl::StatusCode::kCancelled));
}

// A store whose waits for a change last until there is one, whatever time-out the caller gives.
class SlowWaitStore final : public CuttableStore {
 public:
  using CuttableStore::CuttableStore;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    return CuttableStore::Get(key, absl::StrContains(key, "/changed/") ? absl::Seconds(60) : timeout);
  }
};

TEST(RendezvousTest, TheDestructorWaitsForNoTimer) {
  const absl::Time start = absl::Now();
  MemoryStore base;
  SlowWaitStore store(&base);
  RendezvousOptions options = Between(1, 1);
  options.lease = absl::Seconds(60);
  for (const bool closed : {false, true}) {
    options.run_id = closed ? "closed" : "goes on";
    auto rendezvous = MakeRendezvous(&store, options).value();
    TANDEM_ASSERT_OK(rendezvous->Join(NodeOf("a")));
    if (closed) {
      TANDEM_ASSERT_OK(rendezvous->Close(/*failed=*/false, "enough", 0));
    }
  }
  // A node that the others have removed from the document meanwhile.
  options.run_id = "removed";
  auto removed = MakeRendezvous(&store, options).value(), other = MakeRendezvous(&store, options).value();
  TANDEM_ASSERT_OK(removed->Join(NodeOf("a")));
  RendezvousState state;
  const std::string key = "rdzv/removed/state", held = base.Get(key, absl::ZeroDuration()).value();
  ASSERT_TRUE(state.ParseFromString(held));
  state.clear_members();
  state.set_version(state.version() + 1);
  ASSERT_EQ(base.CompareSet(key, held, state.SerializeAsString()).value(), state.SerializeAsString());
  TANDEM_ASSERT_OK(base.Set(absl::StrCat("rdzv/removed/changed/", state.version()), ""));
  removed.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
}

TEST(RendezvousTest, ShortRoundsStrandNoNode) {
  constexpr int kRounds = 60;
  MemoryStore store;
  RendezvousOptions options = Between(2, 2, /*restarts=*/1000);
  options.lease = absl::Seconds(60);  // only the changes themselves wake a waiting node
  Launcher hasty(&store, options, NodeOf("hasty")), slow(&store, options, NodeOf("slow"));
  std::atomic<bool> over{false};
  std::thread other([&] {
    while (true) {
      absl::StatusOr<Round> round = slow.rendezvous->Join(slow.node);
      if (over) return;
      TANDEM_EXPECT_OK(round);
      if (!round.ok()) return;
      TANDEM_EXPECT_OK(slow.rendezvous->WaitForEvent(round->epoch, Soon()));
      if (over) return;
    }
  });
  const absl::Time start = absl::Now();
  for (int i = 0; i < kRounds; ++i) {
    absl::StatusOr<Round> round = hasty.rendezvous->Join(hasty.node);
    TANDEM_EXPECT_OK(round);
    if (!round.ok()) break;
    TANDEM_EXPECT_OK(hasty.rendezvous->RequestRestart(round->epoch, "again", 0));
  }
  EXPECT_LT(absl::Now() - start, absl::Seconds(15));
  over = true;
  TANDEM_EXPECT_OK(hasty.rendezvous->Close(/*failed=*/false, "enough", 0));
  other.join();
}

TEST(RendezvousTest, ASpareReplacesADeadNode) {
  MemoryStore store;
  const RendezvousOptions options = Between(2, 2);
  Launcher a(&store, options, NodeOf("a")), b(&store, options, NodeOf("b")),
      spare(&store, options, NodeOf("s"));
  a.Join();
  b.Join();
  TANDEM_ASSERT_OK(a.Joined());
  TANDEM_ASSERT_OK(b.Joined());
  spare.Join();
  EXPECT_THAT(a.rendezvous->WaitForEvent(1, absl::Now() + kLease / 2),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  b.store.Cut();
  TANDEM_ASSERT_OK(a.rendezvous->WaitForEvent(1, Soon()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round next, a.rendezvous->Join(a.node));
  TANDEM_ASSERT_OK(spare.Joined());
  EXPECT_EQ(spare.round->group_rank, 1);
  EXPECT_EQ(next.epoch, 2);
}

// A store that fails one read of a counter.
class FlakyStore final : public CuttableStore {
 public:
  using CuttableStore::CuttableStore;
  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    if (absl::StrContains(key, "/beat/") && !stumbled_.exchange(true))
      return absl::UnavailableError("etcd has no leader");
    return CuttableStore::Get(key, timeout);
  }

 private:
  std::atomic<bool> stumbled_{false};
};

TEST(RendezvousTest, ASuccessorThatCannotReadTheCounterWaitsForTheDeadNode) {
  MemoryStore store;
  Launcher a(&store, Between(1, 2), NodeOf("a", 0));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  a.store.Cut();  // killed
  FlakyStore flaky(&store);
  const auto successor = MakeRendezvous(&flaky, Between(1, 2)).value();
  EXPECT_THAT(successor->Join(NodeOf("a2", 0)),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("leader")));
  TANDEM_EXPECT_OK(successor->Join(NodeOf("a2", 0)));
}

TEST(RendezvousTest, TwoLaunchersOfOneNodeRankAreNamedAndASuccessorWaitsForTheLease) {
  MemoryStore store;
  Launcher a(&store, Between(1, 2), NodeOf("a", 0));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  Launcher twin(&store, Between(1, 2), NodeOf("twin", 0));
  EXPECT_THAT(
      twin.rendezvous->Join(twin.node),
      StatusIs(absl::StatusCode::kAlreadyExists, AllOf(HasSubstr("node rank 0"), HasSubstr("node a"))));
  a.store.Cut();  // killed
  Launcher successor(&store, Between(1, 2), NodeOf("a2", 0));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, successor.rendezvous->Join(successor.node));
  EXPECT_EQ(round.restarts, 1);
  EXPECT_EQ(round.epoch, 2);
}

TEST(RendezvousTest, AJoinThatWaitsEndsWhenItsNodeLeaves) {
  MemoryStore store;
  Launcher a(&store, Between(2, 2), NodeOf("a"));
  a.Join();
  TANDEM_ASSERT_OK(store.Wait({"rdzv/job/beat/a"}, absl::Seconds(20)));
  while (a.rendezvous->Leave().ok() && store.Check({"rdzv/job/beat/a"}).value()) {
  }
  EXPECT_THAT(a.Joined(), StatusIs(absl::StatusCode::kCancelled));
}

TEST(RendezvousTest, AStateThatWasLostOrReplacedIsNamed) {
  MemoryStore store;
  Launcher a(&store, Between(1, 2), NodeOf("a"));
  TANDEM_ASSERT_OK(a.rendezvous->Join(a.node));
  TANDEM_ASSERT_OK(store.Delete("rdzv/job/state"));
  Launcher b(&store, Between(1, 2), NodeOf("b"));
  TANDEM_ASSERT_OK(b.rendezvous->Join(b.node));
  EXPECT_THAT(
      a.rendezvous->WaitForEvent(1, Soon()),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("has lost the state of the job 'job'")));
}

TEST(RendezvousTest, RunsOfOtherNamesDoNotMeet) {
  MemoryStore store;
  RendezvousOptions other = Between(1, 2);
  other.run_id = "other";
  Launcher a(&store, Between(1, 2), NodeOf("a")), b(&store, other, NodeOf("b"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round mine, a.rendezvous->Join(a.node));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round theirs, b.rendezvous->Join(b.node));
  EXPECT_EQ(mine.nodes.size(), 1u);
  EXPECT_EQ(theirs.nodes.size(), 1u);
}

TEST(RendezvousTest, BadOptionsAndNodesAreRefused) {
  MemoryStore store;
  EXPECT_THAT(MakeRendezvous(&store, Between(3, 2)).status(), StatusIs(absl::StatusCode::kInvalidArgument));
  auto rendezvous = MakeRendezvous(&store, Between(1, 2)).value();
  EXPECT_THAT(rendezvous->Join(NodeOf("")), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(rendezvous->Join(NodeOf("a", 2)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("0 to 1")));
}

TEST(RendezvousTest, AStoreThatCannotBeReachedIsNamed) {
  auto server = StoreServer::Start("127.0.0.1:0").value();
  const std::string address = absl::StrCat("127.0.0.1:", server->port());
  RemoteStore remote(ConnectStore(address).value(), kLease);
  auto rendezvous = MakeRendezvous(&remote, Between(1, 1)).value();
  TANDEM_ASSERT_OK(rendezvous->Join(NodeOf("a")));
  server.reset();
  EXPECT_THAT(rendezvous->WaitForEvent(1, Soon()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
  EXPECT_THAT(rendezvous->Join(NodeOf("a")), StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

// Runs two rounds of two nodes, each of which reaches the store in its own way.
void RunTwoRounds(Store* first, Store* second) {
  Launcher a(first, Between(2, 2), NodeOf("a")), b(second, Between(2, 2), NodeOf("b"));
  for (int epoch = 1; epoch <= 2; ++epoch) {
    a.Join();
    b.Join();
    TANDEM_ASSERT_OK(a.Joined());
    TANDEM_ASSERT_OK(b.Joined());
    EXPECT_EQ(a.round->epoch, epoch);
    EXPECT_EQ(a.round->nodes[0].id, b.round->nodes[0].id);
    if (epoch == 2) break;
    TANDEM_ASSERT_OK(a.rendezvous->RequestRestart(1, "again", 0));
    TANDEM_ASSERT_OK(b.rendezvous->WaitForEvent(1, Soon()));
  }
  TANDEM_ASSERT_OK(b.rendezvous->Close(/*failed=*/true, "enough", 0));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, a.rendezvous->WaitForEvent(2, Soon()));
  EXPECT_EQ(end.reason, "enough");
}

TEST(RendezvousTest, NodesMeetThroughAServer) {
  auto server = StoreServer::Start("127.0.0.1:0").value();
  RemoteStore remote(ConnectStore(absl::StrCat("127.0.0.1:", server->port())).value(), kLease);
  RunTwoRounds(server->store(), &remote);
}

TEST(RendezvousTest, NodesMeetThroughAFile) {
  testing::TempDir directory;
  auto first = FileStore::Open(directory.File("store")).value();
  auto second = FileStore::Open(directory.File("store")).value();
  RunTwoRounds(first.get(), second.get());
}

}  // namespace
}  // namespace tandem::cluster
