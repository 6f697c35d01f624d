// SPDX-License-Identifier: Apache-2.0
// Single decisions of the protocol. tests/ps/failover/explorer_test.cc shows that they keep the rules.

#include "ps/failover/protocol.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "ps/failover/append_fence.h"
#include "ps/failover/wait_set.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using Action = Protocol::Action;
using Kind = Action::Kind;
using Actions = Protocol::Actions;

std::vector<Kind> Kinds(const Actions& actions) {
  std::vector<Kind> kinds;
  for (const Action& action : actions) kinds.push_back(action.kind);
  return kinds;
}

// Returns the actions of the event `call`.
template <typename Call>
Actions After(Call call) {
  Actions actions;
  call(&actions);
  return actions;
}

Protocol FirstPrimary() {
  Protocol protocol("p", "host:1");
  Actions actions;
  protocol.Start(&actions);
  protocol.OnRead({}, &actions);
  protocol.OnCompareAndSet(Protocol::Outcome::kDone, {}, &actions);
  EXPECT_EQ(protocol.role(), Protocol::Role::kPrimary);
  return protocol;
}

const Copy kFollower{"f", "host:2"};

// Makes `kFollower` a follower in sync.
void Join(Protocol* primary) {
  Actions actions;
  EXPECT_TRUE(primary->OnAttach(kFollower, 1, primary->self().id, &actions).ok());
  primary->OnComplete("f", &actions);
  primary->OnCaughtUp("f", &actions);
  primary->OnCompareAndSet(Protocol::Outcome::kDone, {}, &actions);
  EXPECT_TRUE(primary->placement().IsInSync("f"));
}

TEST(ProtocolTest, TheFirstProcessBecomesPrimaryOfTermOne) {
  Protocol protocol("p", "host:1");
  EXPECT_EQ(Kinds(After([&](Actions* a) { protocol.Start(a); })), std::vector<Kind>{Kind::kRead});
  const Actions set = After([&](Actions* a) { protocol.OnRead({}, a); });
  ASSERT_EQ(Kinds(set), std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(set[0].expected, 0u);
  EXPECT_EQ(set[0].placement.term, 1u);
  EXPECT_EQ(set[0].placement.version, 1u);
  EXPECT_EQ(Kinds(After([&](Actions* a) { protocol.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); })),
            (std::vector<Kind>{Kind::kLead, Kind::kServe}));
}

TEST(ProtocolTest, AProcessThatFindsAPrimaryCopiesItUnderANewId) {
  Protocol protocol("q", "host:2");
  const std::string before = protocol.self().id;
  Actions actions;
  protocol.Start(&actions);
  const ShardPlacement found{.version = 3, .term = 2, .primary = {"p", "host:1"}};
  const Actions copy = After([&](Actions* a) { protocol.OnRead(found, a); });
  ASSERT_EQ(Kinds(copy), std::vector<Kind>{Kind::kBeginCopy});
  EXPECT_NE(copy[0].copy.id, before);
  EXPECT_EQ(copy[0].copy.address, "host:2");
}

TEST(ProtocolTest, AFollowerJoinsTheWaitSetBeforeTheDocumentAndLeavesItAfterwards) {
  Protocol primary = FirstPrimary();
  Actions actions;
  ASSERT_TRUE(primary.OnAttach(kFollower, 1, primary.self().id, &actions).ok());
  EXPECT_EQ(Kinds(actions), std::vector<Kind>{Kind::kStartLink});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnComplete("f", a); })), std::vector<Kind>{Kind::kRequire});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCaughtUp("f", a); })),
            std::vector<Kind>{Kind::kCompareAndSet});
  After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); });
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnFollowerSilent("f", a); })),
            std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); })),
            (std::vector<Kind>{Kind::kConfirm, Kind::kRelease}));
  // The link lives on: once it is heard, it joins again.
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnFollowerHeard("f", a); })),
            std::vector<Kind>{Kind::kRequire});
}

TEST(ProtocolTest, AnUnknownOutcomeIsSettledByAnotherCompareAndSetOnly) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  After([&](Actions* a) { primary.OnFollowerSilent("f", a); });
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kUnknown, {}, a); })),
            std::vector<Kind>{Kind::kWait});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnWaited(a); })), std::vector<Kind>{Kind::kRead});
  // The document still names the follower, but the change may be on its way.
  const ShardPlacement found = primary.placement();
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnRead(found, a); })),
            std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); })),
            (std::vector<Kind>{Kind::kConfirm, Kind::kRelease}));
}

TEST(ProtocolTest, APrimaryThatIsDeposedEndsAndNamesItsSuccessor) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  After([&](Actions* a) { primary.OnFollowerSilent("f", a); });
  const ShardPlacement other{.version = 3, .term = 2, .primary = kFollower};
  const Actions end =
      After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kChanged, other, a); });
  ASSERT_EQ(Kinds(end), (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
  EXPECT_TRUE(absl::IsAborted(end[1].status));
  EXPECT_NE(end[1].status.message().find("deposed by f at host:2"), std::string::npos) << end[1].status;
}

TEST(ProtocolTest, ACopyWithAnEndedLinkIsNotServedAgainUnderItsId) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  After([&](Actions* a) { primary.OnLinkEnded("f", a); });
  After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); });
  Actions actions;
  EXPECT_TRUE(absl::IsFailedPrecondition(primary.OnAttach(kFollower, 1, primary.self().id, &actions)));
  EXPECT_TRUE(primary.OnAttach({"f-2", "host:2"}, 1, primary.self().id, &actions).ok());
}

TEST(ProtocolTest, RemovedFollowersAreNotServedUntilTheyAreAllowed) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnRemoveFollowers(a); })),
            std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); })),
            (std::vector<Kind>{Kind::kConfirm, Kind::kRelease, Kind::kEndLink, Kind::kFollowersRemoved}));
  Actions actions;
  const Copy next{"f-2", "host:2"};
  EXPECT_TRUE(absl::IsUnavailable(primary.OnAttach(next, 1, primary.self().id, &actions)));
  primary.OnAllowFollowers();
  EXPECT_TRUE(primary.OnAttach(next, 1, primary.self().id, &actions).ok());
}

// A learner that has found a document of version 3, and a follower of it in sync.
Protocol FollowerOf(ShardPlacement* found) {
  Protocol follower("f", "host:2");
  Actions actions;
  follower.Start(&actions);
  *found = {.version = 3, .term = 2, .primary = {"p", "host:1"}};
  follower.OnRead(*found, &actions);
  found->version = 4;
  found->in_sync = {follower.self()};
  follower.OnTold(*found, &actions);
  EXPECT_EQ(follower.role(), Protocol::Role::kFollower);
  return follower;
}

TEST(ProtocolTest, AnAnswerOlderThanWhatThePrimaryHasToldIsAskedForAgain) {
  ShardPlacement found;
  Protocol follower = FollowerOf(&found);
  After([&](Actions* a) { follower.OnPrimaryLost(2, a); });
  ShardPlacement told = found;
  told.version = 5;
  After([&](Actions* a) { follower.OnTold(told, a); });
  EXPECT_EQ(Kinds(After([&](Actions* a) { follower.OnRead(found, a); })), std::vector<Kind>{Kind::kRead});
  EXPECT_EQ(Kinds(After([&](Actions* a) { follower.OnRead(told, a); })),
            (std::vector<Kind>{Kind::kCloseAppends, Kind::kApplyReceived}));
}

TEST(ProtocolTest, ADocumentOlderThanTheKnownOneMeansThatTheStoreHasLostIt) {
  ShardPlacement found;
  Protocol follower = FollowerOf(&found);
  After([&](Actions* a) { follower.OnPrimaryLost(2, a); });
  ShardPlacement older = found;
  older.version = 1;
  EXPECT_EQ(Kinds(After([&](Actions* a) { follower.OnRead(older, a); })),
            (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
}

TEST(ProtocolTest, ACopyThatIsNotFreshWaitsForADocumentInsteadOfBeginningTheShard) {
  Protocol copy("p", "host:1", /*min_copies=*/1, Protocol::Fault::kNone, /*fresh=*/false);
  EXPECT_EQ(Kinds(After([&](Actions* a) { copy.Start(a); })), std::vector<Kind>{Kind::kRead});
  for (int look = 0; look < 3; ++look) {
    EXPECT_EQ(Kinds(After([&](Actions* a) { copy.OnRead({}, a); })), std::vector<Kind>{Kind::kWait});
    EXPECT_TRUE(copy.misses_placement());
    EXPECT_EQ(Kinds(After([&](Actions* a) { copy.OnWaited(a); })), std::vector<Kind>{Kind::kRead});
  }
  const ShardPlacement found{.version = 9, .term = 3, .primary = {"q-0", "host:2"}};
  EXPECT_EQ(Kinds(After([&](Actions* a) { copy.OnRead(found, a); })), std::vector<Kind>{Kind::kBeginCopy});
  EXPECT_FALSE(copy.misses_placement());
}

TEST(ProtocolTest, AFollowerDoesNotTakeOverWithoutADocument) {
  ShardPlacement found;
  Protocol follower = FollowerOf(&found);
  EXPECT_EQ(Kinds(After([&](Actions* a) { follower.OnPrimaryLost(2, a); })), std::vector<Kind>{Kind::kRead});
  const std::string id = follower.self().id;
  EXPECT_EQ(Kinds(After([&](Actions* a) { follower.OnRead({}, a); })), std::vector<Kind>{Kind::kBeginCopy});
  EXPECT_NE(follower.self().id, id) << "the document may not name this copy any more";
}

TEST(ProtocolTest, APrimaryPublishesALostDocumentAgainOnceTheOtherCopiesDenyALargerTerm) {
  Protocol primary = FirstPrimary();
  const ShardPlacement before = primary.placement();
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnBoardReset(a); })), std::vector<Kind>{Kind::kRead});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnRead({}, a); })), std::vector<Kind>{Kind::kAskCopies});
  EXPECT_TRUE(primary.serving());
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCopiesAsked(before.version, false, a); })),
            std::vector<Kind>{Kind::kWait});
  After([&](Actions* a) { primary.OnWaited(a); });
  After([&](Actions* a) { primary.OnRead({}, a); });
  const Actions publish = After([&](Actions* a) { primary.OnCopiesAsked(before.version, true, a); });
  ASSERT_EQ(Kinds(publish), std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(publish[0].expected, 0u);
  EXPECT_EQ(publish[0].placement.term, before.term);
  EXPECT_EQ(publish[0].placement.primary, primary.self());
  EXPECT_GT(publish[0].placement.version, before.version + 1)
      << "that of an unknown change may have been in force";
  After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); });
  EXPECT_EQ(primary.placement(), publish[0].placement);
  EXPECT_FALSE(primary.misses_placement());
}

TEST(ProtocolTest, APrimaryThatCannotPublishALostDocumentEndsAndNamesWhatItHasWaitedFor) {
  Protocol primary = FirstPrimary();
  EXPECT_TRUE(After([&](Actions* a) { primary.OnNoPlacement("copy q-1 does not answer", a); }).empty());
  After([&](Actions* a) { primary.OnBoardReset(a); });
  After([&](Actions* a) { primary.OnRead({}, a); });
  const Actions ended = After([&](Actions* a) { primary.OnNoPlacement("copy q-1 does not answer", a); });
  ASSERT_EQ(Kinds(ended), (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
  EXPECT_TRUE(absl::IsDataLoss(ended[1].status));
  EXPECT_NE(ended[1].status.message().find("copy q-1 does not answer"), std::string::npos);
}

TEST(ProtocolTest, TheLastFollowerThatIsRequiredStaysInSync) {
  Protocol primary("p", "host:1", /*min_copies=*/2);
  Actions actions;
  primary.Start(&actions);
  primary.OnRead({}, &actions);
  primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, &actions);
  Join(&primary);
  EXPECT_TRUE(After([&](Actions* a) { primary.OnFollowerSilent("f", a); }).empty());
  EXPECT_TRUE(primary.placement().IsInSync("f"));
  EXPECT_TRUE(After([&](Actions* a) { primary.OnLinkEnded("f", a); }).empty());
  // Another one takes its place.
  const Copy next{"g", "host:3"};
  EXPECT_TRUE(primary.OnAttach(next, 1, primary.self().id, &actions).ok());
  After([&](Actions* a) { primary.OnComplete("g", a); });
  const Actions set = After([&](Actions* a) { primary.OnCaughtUp("g", a); });
  ASSERT_EQ(Kinds(set), std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(set[0].placement.in_sync, std::vector<Copy>{next});
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); })),
            (std::vector<Kind>{Kind::kConfirm, Kind::kRelease, Kind::kEndLink}));
}

TEST(ProtocolTest, ARequiredFollowerThatWasTakenForDeadComesBackWhenItIsHeard) {
  Protocol primary("p", "host:1", /*min_copies=*/2);
  Actions actions;
  primary.Start(&actions);
  primary.OnRead({}, &actions);
  primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, &actions);
  Join(&primary);
  EXPECT_TRUE(After([&](Actions* a) { primary.OnLinkEnded("f", a); }).empty());
  EXPECT_TRUE(absl::IsFailedPrecondition(primary.OnHandOver("f", /*stays=*/true, &actions)));
  EXPECT_TRUE(After([&](Actions* a) { primary.OnFollowerHeard("f", a); }).empty());
  TANDEM_EXPECT_OK(primary.OnHandOver("f", /*stays=*/true, &actions));
}

TEST(ProtocolTest, ADelayedAttachDoesNotEndTheLinkToALaterCopyOfItsProcess) {
  Protocol primary = FirstPrimary();
  Actions actions;
  EXPECT_TRUE(primary.OnAttach({"f-2", "host:2"}, 1, primary.self().id, &actions).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(primary.OnAttach({"f-1", "host:2"}, 1, primary.self().id, &actions)));
  EXPECT_TRUE(primary.OnAttach({"f-10", "host:2"}, 1, primary.self().id, &actions).ok());
}

TEST(ProtocolTest, AProbeThatFindsSomebodyRevokesAnEarlierOne) {
  Protocol learner("q", "host:2");
  Actions actions;
  learner.Start(&actions);
  const ShardPlacement found{.version = 3, .term = 2, .primary = {"p", "host:1"}};
  learner.OnRead(found, &actions);
  learner.OnAttachFailed(learner.self().id, &actions);
  learner.OnProbed(3, false, &actions);
  learner.OnPrimaryLost(2, &actions);
  learner.OnRead(found, &actions);
  learner.OnAttachFailed(learner.self().id, &actions);
  learner.OnProbed(3, true, &actions);
  learner.OnWaited(&actions);
  EXPECT_EQ(Kinds(After([&](Actions* a) { learner.OnRead(found, a); })), std::vector<Kind>{Kind::kBeginCopy});
}

TEST(ProtocolTest, AShardIsLostOnlyAfterASecondLookAtTheDocument) {
  Protocol learner("q", "host:2");
  Actions actions;
  learner.Start(&actions);
  const ShardPlacement found{
      .version = 3, .term = 2, .primary = {"p", "host:1"}, .in_sync = {{"r", "host:3"}}};
  learner.OnRead(found, &actions);
  EXPECT_EQ(Kinds(After([&](Actions* a) { learner.OnAttachFailed(learner.self().id, a); })),
            std::vector<Kind>{Kind::kProbe});
  EXPECT_EQ(Kinds(After([&](Actions* a) { learner.OnProbed(3, false, a); })), std::vector<Kind>{Kind::kRead});
  const Actions end = After([&](Actions* a) { learner.OnRead(found, a); });
  ASSERT_EQ(Kinds(end), (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
  EXPECT_TRUE(absl::IsDataLoss(end[1].status)) << end[1].status;
  EXPECT_NE(end[1].status.message().find("checkpoint"), std::string::npos) << end[1].status;
}

TEST(WaitSetTest, ARecordIsDurableOnceEveryRequiredFollowerHasStoredIt) {
  WaitSet set;
  EXPECT_EQ(set.Durable(3), 3u);
  set.Require("a", 1);
  EXPECT_EQ(set.Durable(5), 3u);  // what was durable remains so
  EXPECT_FALSE(set.HasCaughtUp("a"));
  set.SetStored("a", 3);
  EXPECT_TRUE(set.HasCaughtUp("a"));
  set.SetStored("a", 4);
  EXPECT_EQ(set.Durable(5), 4u);
  set.SetStored("a", 2);  // an answer that was delayed
  EXPECT_EQ(set.Durable(5), 4u);
  set.Release("a");
  EXPECT_EQ(set.Durable(5), 5u);
}

TEST(WaitSetTest, NothingIsDurableBelowTheNumberOfCopies) {
  WaitSet set(2);
  EXPECT_EQ(set.Durable(3), 0u);
  set.Require("a", 3);
  EXPECT_EQ(set.Durable(3), 0u);
  set.Confirm(1);
  EXPECT_EQ(set.Durable(3), 3u);
}

TEST(LineageTest, OnlyACopyOfTheSameTermThatIsNotAheadContinues) {
  const Lineage base{.term = 2, .position = 5};
  EXPECT_TRUE(CanContinue(base, {.term = 2, .position = 5}));
  EXPECT_TRUE(CanContinue(base, {.term = 2, .position = 0}));
  EXPECT_FALSE(CanContinue(base, {.term = 2, .position = 6}));
  EXPECT_FALSE(CanContinue(base, {.term = 1, .position = 5}));
  EXPECT_FALSE(CanContinue(base, {.term = 3, .position = 5}));
  // Neither the first primary nor a copy that is not whole has a term.
  EXPECT_FALSE(CanContinue({}, {}));
}

TEST(ProtocolTest, APrimaryThatHasAskedAFollowerServesAgainOnlyAfterItHasChangedTheDocument) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  Actions actions;
  EXPECT_TRUE(absl::IsFailedPrecondition(primary.OnHandOver("g", /*stays=*/true, &actions)));
  ASSERT_TRUE(primary.OnHandOver("f", /*stays=*/true, &actions).ok());
  EXPECT_EQ(Kinds(actions), std::vector<Kind>{Kind::kRefuse});
  EXPECT_TRUE(absl::IsUnavailable(primary.OnHandOver("f", /*stays=*/true, &actions)));
  // The lease does not make it serve.
  EXPECT_TRUE(After([&](Actions* a) { primary.OnLease(true, a); }).empty());
  const Actions told = After([&](Actions* a) { primary.OnAllStored(a); });
  ASSERT_EQ(Kinds(told), std::vector<Kind>{Kind::kTellTakeOver});
  EXPECT_EQ(told[0].copy, kFollower);
  EXPECT_EQ(told[0].placement, primary.placement());
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnHandOverFailed(a); })),
            std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_FALSE(primary.serving());
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kDone, {}, a); })),
            (std::vector<Kind>{Kind::kConfirm, Kind::kServe}));
  EXPECT_TRUE(primary.serving());
}

const ShardPlacement kHandedOver{.version = 3, .term = 2, .primary = kFollower, .handovers = 1};

// Returns a primary that has asked its follower to take over.
Protocol PrimaryThatHasAsked(bool stays) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  Actions actions;
  TANDEM_EXPECT_OK(primary.OnHandOver("f", stays, &actions));
  primary.OnAllStored(&actions);
  return primary;
}

TEST(ProtocolTest, APrimaryThatHasHandedOverFollowsItsSuccessorOnceItsCallsHaveEnded) {
  Protocol primary = PrimaryThatHasAsked(/*stays=*/true);
  const Copy before = primary.self();
  const Actions step = After([&](Actions* a) { primary.OnHandedOver(kHandedOver, a); });
  ASSERT_EQ(Kinds(step), (std::vector<Kind>{Kind::kRefuse, Kind::kStepDown}));
  EXPECT_EQ(step[1].copy, before);
  EXPECT_EQ(primary.role(), Protocol::Role::kSteppingDown);
  // Clients that ask it are led to the new primary already.
  EXPECT_EQ(primary.placement(), kHandedOver);
  EXPECT_FALSE(primary.serving());
  Actions actions;
  EXPECT_TRUE(absl::IsFailedPrecondition(primary.OnAttach({"g-1", "host:3"}, 1, before.id, &actions)));
  EXPECT_TRUE(absl::IsFailedPrecondition(primary.OnHandOver("f", /*stays=*/true, &actions)));
  primary.OnHigherTerm(9, &actions);
  primary.OnPrimaryLost(2, &actions);
  primary.OnSteppedDown("another", absl::OkStatus(), &actions);
  EXPECT_TRUE(actions.empty());
  const Actions follow = After([&](Actions* a) { primary.OnSteppedDown(before.id, absl::OkStatus(), a); });
  ASSERT_EQ(Kinds(follow), std::vector<Kind>{Kind::kBeginCopy});
  EXPECT_EQ(follow[0].placement, kHandedOver);
  EXPECT_NE(follow[0].copy.id, before.id);
  EXPECT_EQ(primary.role(), Protocol::Role::kLearner);
}

TEST(ProtocolTest, APrimaryEndsAfterAHandOverWhoseAnswerWasLost) {
  Protocol primary = PrimaryThatHasAsked(/*stays=*/true);
  Actions actions;
  primary.OnHandOverFailed(&actions);
  const Actions end =
      After([&](Actions* a) { primary.OnCompareAndSet(Protocol::Outcome::kChanged, kHandedOver, a); });
  ASSERT_EQ(Kinds(end), (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
  EXPECT_TRUE(absl::IsCancelled(end[1].status)) << end[1].status;
}

TEST(ProtocolTest, APrimaryEndsAfterAHandOverIfItsTablesCannotBeUsed) {
  Protocol primary = PrimaryThatHasAsked(/*stays=*/true);
  Actions actions;
  primary.OnHandedOver(kHandedOver, &actions);
  const Actions end = After([&](Actions* a) {
    primary.OnSteppedDown(primary.self().id, absl::DataLossError("a table is damaged"), a);
  });
  ASSERT_EQ(Kinds(end), (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
  EXPECT_TRUE(absl::IsCancelled(end[1].status)) << end[1].status;
  EXPECT_NE(end[1].status.message().find("a table is damaged"), std::string::npos) << end[1].status;
}

TEST(ProtocolTest, APrimaryThatLeavesEndsAfterItsHandOverAndNamesItsSuccessor) {
  Protocol primary = PrimaryThatHasAsked(/*stays=*/false);
  const Actions end = After([&](Actions* a) { primary.OnHandedOver(kHandedOver, a); });
  ASSERT_EQ(Kinds(end), (std::vector<Kind>{Kind::kRefuse, Kind::kEnd}));
  EXPECT_TRUE(absl::IsCancelled(end[1].status)) << end[1].status;
  EXPECT_NE(end[1].status.message().find("handed over to f at host:2"), std::string::npos) << end[1].status;
}

TEST(ProtocolTest, AHandOverThatWasNotAskedForYetIsGivenUpAtOnce) {
  Protocol primary = FirstPrimary();
  Join(&primary);
  Actions actions;
  ASSERT_TRUE(primary.OnHandOver("f", /*stays=*/true, &actions).ok());
  EXPECT_EQ(Kinds(After([&](Actions* a) { primary.OnHandOverFailed(a); })), std::vector<Kind>{Kind::kServe});
}

TEST(ProtocolTest, AFollowerThatIsAskedTakesOverInThatVersionOnly) {
  ShardPlacement found;
  Protocol follower = FollowerOf(&found);
  Actions actions;
  EXPECT_TRUE(absl::IsFailedPrecondition(follower.OnTakeOver("e", found, &actions)));
  ShardPlacement older = found;
  older.version = 3;
  EXPECT_TRUE(absl::IsFailedPrecondition(follower.OnTakeOver(follower.self().id, older, &actions)));
  EXPECT_TRUE(actions.empty());
  const std::string id = follower.self().id;
  ASSERT_TRUE(follower.OnTakeOver(id, found, &actions).ok());
  EXPECT_EQ(Kinds(actions), (std::vector<Kind>{Kind::kCloseAppends, Kind::kApplyReceived}));
  const Actions set = After([&](Actions* a) { follower.OnApplied(id, a); });
  ASSERT_EQ(Kinds(set), std::vector<Kind>{Kind::kCompareAndSet});
  EXPECT_EQ(set[0].placement.handovers, 1u);
  EXPECT_EQ(set[0].placement.failovers, 0u);
  // The primary has not waited for the answer, and goes on.
  ShardPlacement later = found;
  later.version = 5;
  EXPECT_EQ(
      Kinds(After([&](Actions* a) { follower.OnCompareAndSet(Protocol::Outcome::kChanged, later, a); })),
      std::vector<Kind>{Kind::kBeginCopy});
}

TEST(AppendFenceTest, StoresMessagesOfItsPrimaryOnly) {
  using Verdict = AppendFence::Verdict;
  AppendFence fence;
  EXPECT_EQ(fence.Check(1, "p", "f"), Verdict::kWrongCopy);
  fence.Open(2, "p", "f");
  EXPECT_EQ(fence.Check(2, "p", "f"), Verdict::kStore);
  EXPECT_EQ(fence.Check(1, "p", "f"), Verdict::kDeposed);
  EXPECT_EQ(fence.Check(2, "q", "f"), Verdict::kWrongCopy);
  EXPECT_EQ(fence.Check(2, "p", "e"), Verdict::kWrongCopy);
  fence.Close();
  EXPECT_EQ(fence.Check(2, "p", "f"), Verdict::kClosed);
  fence.Raise(3);
  EXPECT_EQ(fence.Check(2, "p", "f"), Verdict::kDeposed);
}

}  // namespace
}  // namespace tandem::ps
