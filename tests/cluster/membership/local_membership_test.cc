// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/local_membership.h"

#include <string>
#include <thread>

#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;

constexpr absl::Duration kLease = absl::Seconds(10);

class MembershipTest : public ::testing::Test {
 protected:
  JobState Beat(const std::string& member, bool leaving = false) {
    return membership_.Heartbeat(member, kLease, leaving).value();
  }
  SimulatedClock clock_;
  LocalMembership membership_{&clock_};
};

TEST_F(MembershipTest, AJobOfLivingMembersGoesOn) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(Beat("worker/0").ended);
    EXPECT_FALSE(Beat("worker/1").ended);
    clock_.Advance(kLease / 4);
  }
  EXPECT_THAT(membership_.Members(), ElementsAre("worker/0", "worker/1"));
}

TEST_F(MembershipTest, SilenceUpToTheLeaseIsAllowedAndNotLonger) {
  Beat("worker/0");
  clock_.Advance(kLease);
  EXPECT_FALSE(membership_.State().ended);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_TRUE(membership_.State().ended);
}

TEST_F(MembershipTest, WhereALauncherTicksSilenceEndsTheJobHalfALeaseLater) {
  Beat("worker/0");
  for (int i = 0; i < 15; ++i) {
    membership_.Tick(kLease / 2);
    EXPECT_FALSE(membership_.State().ended);
    clock_.Advance(absl::Seconds(1));
  }
  EXPECT_FALSE(Beat("worker/1").ended);
  clock_.Advance(absl::Milliseconds(1));
  membership_.Tick(kLease / 2);
  EXPECT_EQ(membership_.State().reason, "worker/0 has been silent for 15s (lease 10s): killed or hung?");
}

TEST_F(MembershipTest, NobodyWasSilentWhileTheLauncherItselfDidNotRun) {
  membership_.Tick(kLease / 2);
  Beat("worker/0");
  Beat("worker/1");
  clock_.Advance(3 * kLease);  // all are stopped, and go on one after the other
  EXPECT_FALSE(Beat("worker/0").ended);
  EXPECT_FALSE(membership_.WaitUntilEnded(clock_.Now()).ended);
  membership_.Tick(kLease / 2);
  EXPECT_FALSE(membership_.State().ended);
  for (int i = 0; i < 16 && !membership_.State().ended; ++i) {  // worker/1 does not
    clock_.Advance(absl::Seconds(1));
    Beat("worker/0");
    membership_.Tick(kLease / 2);
  }
  EXPECT_THAT(membership_.State().reason, ::testing::StartsWith("worker/1 has been silent for 16s"));
}

TEST_F(MembershipTest, AWaiterLearnsOfTheEndThatATickHasFound) {
  membership_.Tick(kLease);
  Beat("worker/0");
  JobState state;
  std::thread waiter([&] { state = membership_.WaitUntilEnded(absl::InfiniteFuture()); });
  for (int i = 0; i < 4; ++i) {
    clock_.Advance(kLease / 2);
    membership_.Tick(kLease);
  }
  waiter.join();
  EXPECT_THAT(state.reason, ::testing::StartsWith("worker/0 has been silent for 20s"));
}

TEST_F(MembershipTest, TheDeadMemberIsNamedToTheOthers) {
  Beat("worker/0");
  Beat("worker/1");
  clock_.Advance(absl::Seconds(8));
  Beat("worker/0");
  clock_.Advance(absl::Seconds(3));
  const JobState state = Beat("worker/0");
  EXPECT_TRUE(state.ended);
  EXPECT_TRUE(state.failed);
  EXPECT_EQ(state.reason, "worker/1 has been silent for 11s (lease 10s): killed or hung?");
}

TEST_F(MembershipTest, TheMemberWhoseLeaseEndedFirstIsNamed) {
  Beat("ps/0");
  clock_.Advance(absl::Seconds(1));
  Beat("a");
  clock_.Advance(absl::Seconds(20));
  EXPECT_THAT(membership_.State().reason, ::testing::StartsWith("ps/0 has been silent"));
}

TEST_F(MembershipTest, AMemberThatLeftMayBeSilent) {
  Beat("worker/0");
  Beat("worker/0", /*leaving=*/true);
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(membership_.State().ended);
  EXPECT_THAT(membership_.Members(), ElementsAre());
}

TEST_F(MembershipTest, ARestartingRoleDoesNotEndTheJob) {
  membership_.AllowRestart("actor");
  Beat("actor/0");
  Beat("worker/0");
  clock_.Advance(kLease + absl::Milliseconds(1));
  Beat("worker/0");
  EXPECT_FALSE(membership_.State().ended);
  EXPECT_FALSE(
      membership_.WaitUntilEnded(clock_.Now()).ended);  // and does not spin over the lease that is over
  TANDEM_EXPECT_OK(membership_.End("actor/0", /*failed=*/true, "out of levels"));
  EXPECT_FALSE(membership_.State().ended);
  EXPECT_FALSE(Beat("actor/0").ended);
  clock_.Advance(kLease + absl::Milliseconds(1));
  EXPECT_THAT(membership_.State().reason, ::testing::StartsWith("worker/0 has been silent"));
}

TEST_F(MembershipTest, TheSilenceOfAReplaceableMemberDoesNotEndTheJobAndItsFailureDoes) {
  ASSERT_FALSE(membership_.Heartbeat("ps/0", kLease, false, {.replaceable = true}).value().ended);
  Beat("worker/0");
  clock_.Advance(kLease + absl::Milliseconds(1));
  Beat("worker/0");
  EXPECT_FALSE(membership_.WaitUntilEnded(clock_.Now()).ended);
  TANDEM_EXPECT_OK(membership_.End("ps/0", /*failed=*/true, "shard 0 is lost"));
  EXPECT_EQ(membership_.State().reason, "ps/0: shard 0 is lost");
}

TEST_F(MembershipTest, AMemberWithoutAHeartbeatIsNotDead) {
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(membership_.State().ended);
}

TEST_F(MembershipTest, TheFirstReasonIsKept) {
  Beat("worker/0");
  TANDEM_EXPECT_OK(membership_.End("worker/1", /*failed=*/true, "data file missing"));
  TANDEM_EXPECT_OK(membership_.End("worker/2", /*failed=*/false, "all done"));
  clock_.Advance(absl::Hours(1));
  const JobState state = Beat("worker/0");
  EXPECT_TRUE(state.failed);
  EXPECT_EQ(state.reason, "worker/1: data file missing");
}

TEST_F(MembershipTest, AJobCanEndWithSuccess) {
  TANDEM_EXPECT_OK(membership_.End("launcher", /*failed=*/false, "all workers finished"));
  const JobState state = Beat("ps/0");
  EXPECT_TRUE(state.ended);
  EXPECT_FALSE(state.failed);
}

TEST_F(MembershipTest, InvalidHeartbeatsAreRefused) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(membership_.Heartbeat("", kLease, false), StatusIs(kInvalid));
  EXPECT_THAT(membership_.Heartbeat(std::string(300, 'm'), kLease, false), StatusIs(kInvalid));
  EXPECT_THAT(membership_.Heartbeat("m", absl::ZeroDuration(), false), StatusIs(kInvalid));
  EXPECT_THAT(membership_.Heartbeat("m", absl::Hours(48), false), StatusIs(kInvalid));
}

TEST_F(MembershipTest, ALongReasonIsTruncatedBetweenCharacters) {
  std::string reason;
  for (int i = 0; i < 10000; ++i) reason += "\xc3\xa9";
  TANDEM_EXPECT_OK(membership_.End("x", true, reason));
  const std::string kept = membership_.State().reason;
  EXPECT_LT(kept.size(), 17000u);
  EXPECT_THAT(kept, ::testing::EndsWith("\xc3\xa9..."));
}

TEST_F(MembershipTest, AWaiterLearnsOfADeathWithoutAnybodysHeartbeat) {
  Beat("worker/0");
  std::thread waiter([&] {
    EXPECT_THAT(membership_.WaitUntilEnded(clock_.Now() + absl::Hours(1)).reason,
                ::testing::HasSubstr("worker/0"));
  });
  clock_.Advance(kLease + absl::Milliseconds(1));
  waiter.join();
}

TEST_F(MembershipTest, AWaiterReturnsAtItsDeadline) {
  Beat("worker/0", /*leaving=*/true);
  const absl::Time deadline = clock_.Now() + absl::Minutes(1);
  std::thread waiter([&] { EXPECT_FALSE(membership_.WaitUntilEnded(deadline).ended); });
  clock_.Advance(absl::Minutes(1));
  waiter.join();
}

TEST_F(MembershipTest, StatusesContainTheLastReportOfEachMember) {
  Beat("worker/1", /*leaving=*/true);
  MemberReport report{.state = std::string(300, 'x'), .host = "node-a", .pid = 4711, .step = 12, .epoch = 2};
  TANDEM_ASSERT_OK(membership_.Heartbeat("worker/0", kLease, false, report));
  clock_.Advance(absl::Seconds(3));
  const std::vector<MemberStatus> statuses = membership_.Statuses();
  ASSERT_EQ(statuses.size(), 2u);
  EXPECT_EQ(statuses[0].name, "worker/0");
  EXPECT_EQ(statuses[0].silent, absl::Seconds(3));
  EXPECT_EQ(statuses[0].lease, kLease);
  EXPECT_EQ(statuses[0].report.host, "node-a");
  EXPECT_EQ(statuses[0].report.pid, 4711);
  EXPECT_EQ(statuses[0].report.step, 12u);
  EXPECT_EQ(statuses[0].report.epoch, 2);
  EXPECT_EQ(statuses[0].report.state.size(), 256u);  // a peer may send any length
  EXPECT_FALSE(statuses[0].left);
  EXPECT_TRUE(statuses[1].left);
}

// Two processes that were started with the same name.
const MemberProcess kFirst{.host = "a", .boot_id = "x", .pid_namespace = 1, .pid = 10, .started = 5};
const MemberProcess kSecond{.host = "b", .boot_id = "y", .pid_namespace = 1, .pid = 20, .started = 6};

class LivesTest : public MembershipTest {
 protected:
  // Returns the life that `process` gets, or 0 if another process has the name.
  int64_t Join(const MemberProcess& process, int64_t life = 0, int64_t replaces = 0) {
    return membership_.Join("worker/0", process, life, replaces).value().life;
  }
  absl::Status BeatOf(int64_t life, bool leaving = false) {
    return membership_.Heartbeat("worker/0", kLease, leaving, {.replaceable = true}, life).status();
  }
};

TEST_F(LivesTest, AProcessThatJoinsAgainKeepsItsLife) {
  EXPECT_EQ(Join(kFirst), 1);
  EXPECT_EQ(Join(kFirst), 1);
  EXPECT_EQ(Join(kFirst, /*life=*/1), 1);
}

TEST_F(LivesTest, TheNameIsTakenWhileTheFirstProcessIsHeard) {
  EXPECT_EQ(Join(kFirst), 1);
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(BeatOf(1), ::tandem::testing::IsOk());
    clock_.Advance(kLease / 2);
    const JoinResult refused = membership_.Join("worker/0", kSecond).value();
    EXPECT_EQ(refused.life, 0);
    ASSERT_TRUE(refused.holder.has_value());
    EXPECT_EQ(refused.holder->process, kFirst);
    EXPECT_EQ(refused.holder->silent, kLease / 2);
    EXPECT_EQ(refused.holder->heartbeats, i + 1);
  }
  clock_.Advance(kLease);
  EXPECT_EQ(Join(kSecond), 2);
}

TEST_F(LivesTest, AProcessThatHasLeftOrEndedFreesItsName) {
  EXPECT_EQ(Join(kFirst), 1);
  EXPECT_THAT(BeatOf(1, /*leaving=*/true), ::tandem::testing::IsOk());
  EXPECT_EQ(Join(kSecond), 2);
  TANDEM_EXPECT_OK(membership_.EndLife("worker/0", kFirst));  // it does not have the name any more
  EXPECT_EQ(Join(kFirst), 0);
  TANDEM_EXPECT_OK(membership_.EndLife("worker/0", kSecond));
  EXPECT_EQ(Join(kFirst), 3);
}

TEST_F(LivesTest, AParentFreesTheNameOfAChildByItsPid) {
  EXPECT_EQ(Join(kFirst), 1);
  MemberProcess child = kFirst;
  child.host = "another name of it";
  child.started = 0;
  ++child.pid;
  TANDEM_EXPECT_OK(membership_.EndLife("worker/0", child));
  EXPECT_EQ(Join(kSecond), 0);
  --child.pid;
  TANDEM_EXPECT_OK(membership_.EndLife("worker/0", child));
  EXPECT_EQ(Join(kSecond), 2);
}

TEST_F(LivesTest, OnlyTheLifeThatWasSeenToBeGoneIsReplaced) {
  EXPECT_EQ(Join(kFirst), 1);
  EXPECT_EQ(Join(kSecond, 0, /*replaces=*/1), 2);
  EXPECT_EQ(Join(kFirst, 0, /*replaces=*/1), 0);
}

TEST_F(LivesTest, AnEarlierLifeIsRefusedByName) {
  EXPECT_EQ(Join(kFirst), 1);
  EXPECT_EQ(Join(kSecond, 0, /*replaces=*/1), 2);
  clock_.Advance(absl::Seconds(3));
  const auto refused =
      StatusIs(absl::StatusCode::kAlreadyExists,
               ::testing::HasSubstr("worker/0 (life 1) was replaced by pid 20 on b (life 2) 3s ago"));
  EXPECT_THAT(BeatOf(1), refused);
  EXPECT_THAT(BeatOf(1, /*leaving=*/true), refused);
  EXPECT_THAT(membership_.AdmitLife("worker/0", 1), refused);
  EXPECT_THAT(membership_.Join("worker/0", kFirst, /*life=*/1), refused);
  EXPECT_THAT(BeatOf(2), ::tandem::testing::IsOk());
  EXPECT_EQ(Join(kFirst), 0) << "the farewell of the first life has not freed the name of the second";
}

TEST_F(LivesTest, AMemberThatHasNotJoinedChangesNothingAndAClientHasNoName) {
  EXPECT_THAT(membership_.AdmitLife("", 0), ::tandem::testing::IsOk());
  EXPECT_EQ(Join(kFirst), 1);  // as worker/0
  for (const char* const member : {"worker/0", "worker/1"}) {
    EXPECT_THAT(membership_.AdmitLife(member, 0),
                StatusIs(absl::StatusCode::kFailedPrecondition, ::testing::HasSubstr(member)));
  }
}

TEST_F(LivesTest, LivesGoOnFromTheLargestThatAMemberHasAfterTheStoreLostItsMemory) {
  EXPECT_EQ(Join(kFirst, /*life=*/5), 5);
  EXPECT_EQ(Join(kSecond), 0);
  EXPECT_THAT(membership_.AdmitLife("worker/0", 7), ::tandem::testing::IsOk());
  EXPECT_EQ(Join(kSecond), 0);
  clock_.Advance(2 * kLease);
  EXPECT_EQ(Join(kSecond), 8);
}

TEST_F(LivesTest, ANewLifeIsHeardWhenItJoins) {
  EXPECT_EQ(Join(kFirst), 1);
  EXPECT_THAT(membership_.Heartbeat("worker/0", kLease, false, {}, 1).status(), ::tandem::testing::IsOk());
  clock_.Advance(kLease);
  EXPECT_EQ(Join(kSecond, 0, /*replaces=*/1), 2);
  clock_.Advance(kLease);
  EXPECT_FALSE(membership_.State().ended) << "it may still start";
  EXPECT_EQ(membership_.Statuses().at(0).life, 2);
}

TEST_F(LivesTest, NamesAreLimited) {
  EXPECT_THAT(membership_.Join("", kFirst), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(membership_.Join(std::string(257, 'm'), kFirst), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace tandem::cluster
