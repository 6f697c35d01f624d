// SPDX-License-Identifier: Apache-2.0
// The rendezvous of launchers, as threads, when a node whose death does not end the round dies, is cut off or
// returns.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cluster/rendezvous/rendezvous.h"
#include "cluster/store/memory_store.h"
#include "tests/cluster/rendezvous/cuttable_store.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kShortLease = absl::Seconds(2);

absl::Time InAWhile() { return absl::Now() + absl::Seconds(30); }

// A launcher of its own connection to the store.
struct NodeThread {
  NodeThread(CuttableStore* store, const std::string& id, int node_rank, bool replaceable)
      : store(store), rendezvous(MakeRendezvous(store, Options()).value()) {
    node = {.id = id, .host = "127.0.0.1", .node_rank = node_rank, .replaceable = replaceable};
    node.processes = {{replaceable ? "ps" : "worker", 1}};
  }
  ~NodeThread() {
    if (thread.joinable()) thread.join();
  }
  static RendezvousOptions Options() {
    RendezvousOptions options;
    options.min_nodes = options.max_nodes = 2;
    options.join_timeout = absl::Seconds(60);
    options.lease = kShortLease;
    return options;
  }
  void Join() {
    thread = std::thread([this] { round = rendezvous->Join(node); });
  }
  absl::StatusOr<Round>& Joined() {
    thread.join();
    return round;
  }

  CuttableStore* const store;
  std::unique_ptr<Rendezvous> rendezvous;
  Node node;
  absl::StatusOr<Round> round;
  std::thread thread;
};

// Loses the answer of the next CompareSet, which is done all the same.
class ForgetfulStore final : public CuttableStore {
 public:
  using CuttableStore::CuttableStore;
  void LoseAnAnswer() { lose_ = true; }
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    absl::StatusOr<std::string> held = CuttableStore::CompareSet(key, expected, desired);
    if (lose_.exchange(false)) return absl::UnavailableError("the answer was lost (by the test)");
    return held;
  }

 private:
  std::atomic<bool> lose_{false};
};

// A round of a worker node "w" and a server node "s".
class ReplaceableNodesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (NodeThread* node : {&w_, &s_}) node->Join();
    for (NodeThread* node : {&w_, &s_}) TANDEM_ASSERT_OK(node->Joined());
  }
  // Returns the next change of the round's nodes that node w sees.
  NodeChange NextChange() {
    const absl::StatusOr<RendezvousEvent> event = w_.rendezvous->WaitForEvent(1, InAWhile());
    TANDEM_EXPECT_OK(event);
    if (!event.ok() || event->changes.size() != 1) return {};
    EXPECT_EQ(event->kind, RendezvousEvent::Kind::kNodes);
    EXPECT_EQ(event->round.epoch, 1);
    return event->changes[0];
  }

  MemoryStore store_;
  CuttableStore w_store_{&store_}, s_store_{&store_};
  NodeThread w_{&w_store_, "w", 0, false}, s_{&s_store_, "s", 1, true};
};

TEST_F(ReplaceableNodesTest, ASilentOneIsNamedAndASuccessorJoinsTheRunningRound) {
  s_store_.Cut();
  const NodeChange died = NextChange();
  EXPECT_EQ(died.index, 1);
  EXPECT_TRUE(died.absent);
  EXPECT_THAT(died.text, AllOf(HasSubstr("node s (127.0.0.1) has been silent for"), HasSubstr("lease 2s")));
  EXPECT_THAT(w_.rendezvous->WaitForEvent(1, absl::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));

  CuttableStore store(&store_);
  NodeThread successor(&store, "s2", 1, true);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, successor.rendezvous->Join(successor.node));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.restarts, 0);
  EXPECT_EQ(round.group_rank, 1);
  EXPECT_EQ(round.process_restarts, 1);
  EXPECT_THAT(round.absent, IsEmpty());
  EXPECT_EQ(NextChange().text, "node s2 (127.0.0.1) takes the place of node s (127.0.0.1)");
  // The job ends as if nothing had happened.
  TANDEM_ASSERT_OK(successor.rendezvous->Finish(1));
  TANDEM_ASSERT_OK(w_.rendezvous->Finish(1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, successor.rendezvous->WaitForEvent(1, InAWhile()));
  EXPECT_EQ(end.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_FALSE(end.failed);
}

TEST_F(ReplaceableNodesTest, ASuccessorThatComesBeforeTheLeaseIsOverWaitsForItsEnd) {
  s_store_.Cut();
  CuttableStore store(&store_);
  NodeThread successor(&store, "s2", 1, true);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, successor.rendezvous->Join(successor.node));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.group_rank, 1);
}

TEST_F(ReplaceableNodesTest, ANodeThatWasCutOffLearnsItFirstAndTakesItsPlaceAgainUnderANewId) {
  EXPECT_TRUE(s_.rendezvous->MayStart(1, 0));
  EXPECT_FALSE(s_.rendezvous->MayStart(2, 0));
  s_store_.Cut();
  EXPECT_THAT(s_.rendezvous->WaitForEvent(1, InAWhile()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the others take it for dead")));
  EXPECT_FALSE(s_.rendezvous->MayStart(1, 0));
  EXPECT_TRUE(NextChange().absent);
  s_store_.Mend();
  s_.node.id = "s again";
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, s_.rendezvous->Join(s_.node));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.process_restarts, 1);
  EXPECT_EQ(NextChange().text, "node s again (127.0.0.1) takes the place of node s (127.0.0.1)");
  EXPECT_TRUE(s_.rendezvous->MayStart(1, 0));
  EXPECT_THAT(s_.rendezvous->WaitForEvent(1, absl::Now()), StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ReplaceableNodesTest, ANodeThatComesBackBeforeTheOthersMissItLeavesItsPlaceFirst) {
  s_.node.id = "s again";  // it has found its lease run out, and the others are about to
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, s_.rendezvous->Join(s_.node));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.process_restarts, 1);
  std::string text = NextChange().text;
  if (absl::StrContains(text, "has left") && !absl::StrContains(text, "takes")) text = NextChange().text;
  EXPECT_THAT(text, HasSubstr("node s again (127.0.0.1) takes the place of node s (127.0.0.1)"));
}

TEST_F(ReplaceableNodesTest, ANodeWhosePlaceWasTakenIsToldAndDoesNotGetItBack) {
  s_store_.Cut();
  CuttableStore store(&store_);
  NodeThread successor(&store, "s2", 1, true);
  TANDEM_ASSERT_OK(successor.rendezvous->Join(successor.node));
  s_store_.Mend();
  EXPECT_THAT(s_.rendezvous->WaitForEvent(1, InAWhile()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(s_.rendezvous->MayStart(1, 0));
  s_.node.id = "s again";
  EXPECT_THAT(s_.rendezvous->Join(s_.node),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("node rank 1 is taken by node s2")));
  EXPECT_THAT(successor.rendezvous->WaitForEvent(1, absl::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ReplaceableNodesTest, ANodeThatHasLostItsPlaceEndsNeitherTheRoundNorTheJob) {
  s_store_.Cut();
  EXPECT_TRUE(NextChange().absent);
  s_store_.Mend();
  TANDEM_EXPECT_OK(s_.rendezvous->RequestRestart(1, "its processes have died", 137));
  TANDEM_EXPECT_OK(s_.rendezvous->Stop("stopped by SIGTERM", 143));
  TANDEM_EXPECT_OK(s_.rendezvous->Close(/*failed=*/true, "too many deaths", 137));
  CuttableStore store(&store_);
  NodeThread successor(&store, "s2", 1, true);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, successor.rendezvous->Join(successor.node));
  EXPECT_EQ(round.epoch, 1);
  TANDEM_EXPECT_OK(s_.rendezvous->Stop("stopped by SIGTERM", 143));
  EXPECT_THAT(NextChange().text, HasSubstr("takes the place"));
  EXPECT_THAT(successor.rendezvous->WaitForEvent(1, absl::Now()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

TEST_F(ReplaceableNodesTest, NoProcessStartsBeforeASuccessorWouldKnowOfIt) {
  EXPECT_FALSE(s_.rendezvous->MayStart(1, 3));
  TANDEM_ASSERT_OK(s_.rendezvous->RecordRestarts(1, 3));
  EXPECT_TRUE(s_.rendezvous->MayStart(1, 3));
  s_store_.Cut();
  EXPECT_THAT(s_.rendezvous->RecordRestarts(1, 4), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_FALSE(s_.rendezvous->MayStart(1, 4));
  CuttableStore store(&store_);
  NodeThread successor(&store, "s2", 1, true);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, successor.rendezvous->Join(successor.node));
  EXPECT_EQ(round.process_restarts, 4);
}

TEST_F(ReplaceableNodesTest, AJoinWhoseAnswerWasLostIsRepeatedAndTakesThePlaceOnce) {
  s_store_.Cut();
  EXPECT_TRUE(NextChange().absent);
  ForgetfulStore store(&store_);
  NodeThread successor(&store, "s2", 1, true);
  store.LoseAnAnswer();
  EXPECT_THAT(successor.rendezvous->Join(successor.node), StatusIs(absl::StatusCode::kUnavailable));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Round round, successor.rendezvous->Join(successor.node));
  EXPECT_EQ(round.epoch, 1);
  EXPECT_EQ(round.group_rank, 1);
  EXPECT_GE(round.process_restarts, 1);
  EXPECT_FALSE(NextChange().absent);
}

TEST_F(ReplaceableNodesTest, ADeathWhoseReportWasLostIsReportedAgain) {
  // Node w cannot read or write while the lease of s runs out. Afterwards it detects the death by itself.
  s_store_.Cut();
  w_store_.Cut();
  EXPECT_THAT(s_.rendezvous->WaitForEvent(1, InAWhile()), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(w_.rendezvous->WaitForEvent(1, InAWhile()), StatusIs(absl::StatusCode::kUnavailable));
  w_store_.Mend();
  const absl::Time deadline = InAWhile();
  absl::StatusOr<RendezvousEvent> event = absl::UnavailableError("not asked yet");
  while (absl::IsUnavailable(event.status()) && absl::Now() < deadline) {
    event = w_.rendezvous->WaitForEvent(1, deadline);
  }
  TANDEM_ASSERT_OK(event);
  EXPECT_EQ(event->kind, RendezvousEvent::Kind::kNodes);
  EXPECT_THAT(event->round.absent, ElementsAre(1));
}

TEST_F(ReplaceableNodesTest, AnAbsentOneCausesNoMoreCallsThanALivingOne) {
  const auto calls_of_a_lease = [this] {
    const int before = w_store_.calls();
    EXPECT_THAT(w_.rendezvous->WaitForEvent(1, absl::Now() + kShortLease),
                StatusIs(absl::StatusCode::kDeadlineExceeded));
    return w_store_.calls() - before;
  };
  const int living = calls_of_a_lease();
  s_store_.Cut();
  EXPECT_TRUE(NextChange().absent);
  EXPECT_LE(calls_of_a_lease(), 3 * living / 2 + 4);  // the first lease also has the changes of the document
}

TEST_F(ReplaceableNodesTest, LeavingIsSeenAtOnceAndTheRoundGoesOn) {
  TANDEM_ASSERT_OK(s_.rendezvous->Leave());
  EXPECT_EQ(NextChange().text, "node s (127.0.0.1) has left");
  TANDEM_ASSERT_OK(w_.rendezvous->Finish(1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, w_.rendezvous->WaitForEvent(1, InAWhile()));
  EXPECT_EQ(end.kind, RendezvousEvent::Kind::kClosed);
  EXPECT_FALSE(end.failed);
}

TEST_F(ReplaceableNodesTest, TheDeathOfTheOtherNodeEndsTheRound) {
  w_store_.Cut();
  TANDEM_ASSERT_OK_AND_ASSIGN(const RendezvousEvent end, s_.rendezvous->WaitForEvent(1, InAWhile()));
  EXPECT_EQ(end.kind, RendezvousEvent::Kind::kClosed);  // no restart is left
  EXPECT_TRUE(end.failed);
  EXPECT_THAT(end.reason, HasSubstr("node w"));
}

}  // namespace
}  // namespace tandem::cluster
