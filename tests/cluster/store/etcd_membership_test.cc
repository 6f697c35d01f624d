// SPDX-License-Identifier: Apache-2.0
// The members of a job whose store is in etcd, against a real server.

#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/environment.h"
#include "cluster/join.h"
#include "cluster/member.h"
#include "cluster/membership/member_process.h"
#include "cluster/store/etcd/etcd_channel.h"
#include "cluster/store/remote_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/security/job_key.h"
#include "tandem/v1/store.pb.h"
#include "tests/testing/processes/etcd_server.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::EtcdServer;
using ::tandem::testing::kTestTimeout;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// etcd's shortest.
constexpr absl::Duration kLease = absl::Seconds(2);

// Processes of another machine, which this one cannot look for.
MemberProcess Elsewhere(int pid) {
  return {.host = "node-b", .boot_id = "b", .pid_namespace = 1, .pid = pid, .started = 7};
}

class EtcdMembershipTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (EtcdServer::Installed()) etcd_ = EtcdServer::Start().release();
  }
  static void TearDownTestSuite() { delete std::exchange(etcd_, nullptr); }
  void SetUp() override {
    if (!EtcdServer::Installed()) GTEST_SKIP() << "etcd-server is not installed";
    ASSERT_NE(etcd_, nullptr) << "etcd does not start";
    static int tests = 0;
    url_ = absl::StrCat("etcd://", etcd_->address(), "/job-", ++tests);
  }
  // The membership as a process has it that is no member.
  std::unique_ptr<Membership> Open(const std::string& name = "") {
    return OpenEtcdMembership(url_, name).value();
  }
  Environment Worker(int rank) const {
    Environment env;
    env.rank = rank;
    env.world_size = 4;
    env.store = url_;
    env.lease = kLease;
    return env;
  }
  // Returns the state once the job has ended, or after the test's time.
  JobState AwaitEnd(Membership* membership) {
    return membership->WaitUntilEnded(MonotonicNow() + kTestTimeout);
  }

  static EtcdServer* etcd_;
  std::string url_;
};
EtcdServer* EtcdMembershipTest::etcd_ = nullptr;

TEST_F(EtcdMembershipTest, ANameIsGivenToOneProcessUntilItsLifeEnds) {
  const auto first = Open(), second = Open();
  EXPECT_EQ(first->incarnation(), second->incarnation());
  EXPECT_EQ(first->Join("worker/0", Elsewhere(1))->life, 1);
  EXPECT_EQ(first->Join("worker/0", Elsewhere(1))->life, 1) << "the same process has the same life";
  const auto refused = second->Join("worker/0", Elsewhere(2));
  TANDEM_ASSERT_OK(refused.status());
  ASSERT_TRUE(refused->holder.has_value());
  EXPECT_EQ(refused->holder->process, Elsewhere(1));
  EXPECT_EQ(refused->holder->life, 1);
  TANDEM_ASSERT_OK(second->EndLife("worker/0", Elsewhere(3)));  // another process
  EXPECT_TRUE(second->Join("worker/0", Elsewhere(2))->holder.has_value());
  TANDEM_ASSERT_OK(second->EndLife("worker/0", Elsewhere(1)));
  EXPECT_EQ(second->Join("worker/0", Elsewhere(2))->life, 2);
  EXPECT_THAT(first->Heartbeat("worker/0", kLease, false, {}, 1).status(),
              StatusIs(absl::StatusCode::kAlreadyExists,
                       AllOf(HasSubstr("worker/0 (life 1) was replaced by pid 2 on node-b (life 2)"))));
  TANDEM_EXPECT_OK(first->AdmitLife("worker/0", 2));
  EXPECT_EQ(first->Join("worker/0", Elsewhere(4), 0, /*replaces=*/2)->life, 3);
}

TEST_F(EtcdMembershipTest, ASilentMemberEndsTheJobAfterItsLeaseWhoeverIsLeftToLook) {
  const auto dies = Open(), lives = Open();
  // The one that dies comes first, so it is the one that looks.
  TANDEM_ASSERT_OK(dies->Heartbeat("worker/1", kLease, false));
  TANDEM_ASSERT_OK(dies->Heartbeat("actor/0", kLease, false, {.replaceable = true}));
  const absl::Time start = MonotonicNow();
  JobState state;
  while (!state.ended && MonotonicNow() - start < kTestTimeout) {
    state = lives->Heartbeat("worker/0", kLease, false).value();
  }
  EXPECT_GE(MonotonicNow() - start, kLease);
  EXPECT_TRUE(state.failed);
  EXPECT_THAT(state.reason, AllOf(HasSubstr("worker/1 has been silent for"), HasSubstr("(lease 2s)")));
  EXPECT_EQ(Open()->Look()->job.reason, state.reason);
}

TEST_F(EtcdMembershipTest, ALauncherFindsASilentMemberAndRolesThatAreRestartedEndNothing) {
  const auto member = Open(), launcher = Open("a");
  launcher->AllowRestart("ps");
  TANDEM_ASSERT_OK(member->Heartbeat("ps/0", kLease, false));
  EXPECT_FALSE(launcher->WaitUntilEnded(MonotonicNow() + 3 * kLease).ended);
  TANDEM_EXPECT_OK(member->End("ps/0", /*failed=*/true, "shard 0 is lost"));
  EXPECT_FALSE(launcher->Look()->job.ended);
  const auto status = launcher->Look()->members;
  ASSERT_EQ(status.size(), 1);
  EXPECT_GT(status[0].silent, status[0].lease);
  TANDEM_ASSERT_OK(member->Heartbeat("worker/0", kLease, false));
  const absl::Time start = MonotonicNow();
  EXPECT_THAT(AwaitEnd(launcher.get()).reason, HasSubstr("worker/0 has been silent"));
  EXPECT_GE(MonotonicNow() - start, 1.5 * kLease) << "the launcher itself comes first";
}

TEST_F(EtcdMembershipTest, TheFirstReasonStaysAndAMemberThatLeftIsNotMissed) {
  const auto one = Open(), two = Open("a");
  TANDEM_ASSERT_OK(one->Heartbeat("worker/0", kLease, false));
  TANDEM_ASSERT_OK(one->Heartbeat("worker/0", kLease, /*leaving=*/true));
  EXPECT_FALSE(two->WaitUntilEnded(MonotonicNow() + 3 * kLease).ended);
  TANDEM_ASSERT_OK(two->End("worker/1", /*failed=*/true, "no data"));
  TANDEM_ASSERT_OK(one->End("", /*failed=*/false, "done"));
  for (Membership* each : {one.get(), two.get()}) {
    const JobState state = AwaitEnd(each);
    EXPECT_TRUE(state.failed);
    EXPECT_EQ(state.reason, "worker/1: no data");
  }
}

TEST_F(EtcdMembershipTest, ReportsAreShownAndWrittenWhenTheyChange) {
  const auto member = Open(), observer = Open();
  TANDEM_ASSERT_OK(member->Heartbeat("ps/0", absl::Minutes(1), false, {.state = "starting", .step = 1}));
  TANDEM_ASSERT_OK(member->Heartbeat("ps/0", absl::Minutes(1), false, {.state = "starting", .step = 2}));
  EXPECT_EQ(observer->Look()->members[0].report.step, 1) << "the step alone waits for a lease";
  TANDEM_ASSERT_OK(
      member->Heartbeat("ps/0", absl::Minutes(1), false, {.state = "serving", .step = 3, .address = "a:1"}));
  const MemberStatus status = observer->Look()->members[0];
  EXPECT_EQ(status.name, "ps/0");
  EXPECT_EQ(status.report.state, "serving");
  EXPECT_EQ(status.report.step, 3);
  EXPECT_EQ(status.report.address, "a:1");
  EXPECT_EQ(status.lease, absl::Minutes(1));
  EXPECT_EQ(status.silent, absl::ZeroDuration());
  EXPECT_FALSE(status.left);
}

TEST_F(EtcdMembershipTest, AMemberJoinsUsesTheStoreAndLeaves) {
  auto member = Member::Join(Worker(1)).value();
  EXPECT_EQ(member->env().life, 1);
  EXPECT_EQ(member->store_address(), url_);
  Store& store = *member->store();
  TANDEM_ASSERT_OK(store.Set("k", "v"));
  EXPECT_EQ(store.Get("k", kTestTimeout).value(), "v");
  EXPECT_EQ(store.GetIfPresent("absent", kTestTimeout).value(), "");
  EXPECT_THAT(store.Get("absent", absl::Milliseconds(10)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("absent")));
  EXPECT_THAT(store.MultiGet({"k", "gone"}, absl::Milliseconds(10)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("gone")));
  EXPECT_EQ(store.MultiGet({"k"}, kTestTimeout).value(), std::vector<std::string>{"v"});
  EXPECT_EQ(store.Add("n", 3).value(), 3);
  EXPECT_EQ(store.CompareSet("k", "v", "w").value(), "w");
  EXPECT_EQ(store.Append("k", "x").value(), 2);
  TANDEM_ASSERT_OK(store.MultiSet({"a", "b"}, {"1", "2"}));
  EXPECT_TRUE(store.Check({"a", "b"}).value());
  EXPECT_TRUE(store.Delete("a").value());
  EXPECT_THAT(store.List("b").value(), ElementsAre("b"));
  TANDEM_ASSERT_OK(store.Push("q", "1"));
  EXPECT_EQ(store.Length("q").value(), 1);
  EXPECT_EQ(store.Pop("q", kTestTimeout).value(), "1");
  EXPECT_THAT(store.Pop("q", absl::Milliseconds(10)).status(),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("q")));
  EXPECT_EQ(Open()->Look()->members[0].name, "worker/1");
  TANDEM_ASSERT_OK(member->Leave(kTestTimeout));
  EXPECT_TRUE(Open()->Look()->members[0].left);
}

TEST_F(EtcdMembershipTest, AProcessThatWasReplacedChangesNothingMore) {
  const auto job = OpenStore(Worker(0), kTestTimeout).value();
  TANDEM_ASSERT_OK(job->store()->Set("k", "mine"));
  const auto other = Open();
  ASSERT_EQ(other->Join("worker/0", Elsewhere(2), 0, /*replaces=*/1)->life, 2);
  const auto refused = StatusIs(absl::StatusCode::kAlreadyExists,
                                HasSubstr("worker/0 (life 1) was replaced by pid 2 on node-b (life 2)"));
  EXPECT_THAT(job->store()->Set("k", "late"), refused);
  EXPECT_THAT(job->store()->CompareSet("k", "mine", "late").status(), refused);
  EXPECT_EQ(job->store()->Get("k", kTestTimeout).value(), "mine") << "it may read";
}

TEST_F(EtcdMembershipTest, OnlyTheOwnerOfAKeyChangesIt) {
  const auto job = OpenStore(Worker(0), kTestTimeout).value();
  const auto refused = StatusIs(
      absl::StatusCode::kPermissionDenied,
      AllOf(HasSubstr("'ps/3'"), HasSubstr("the parameter servers of shard '3'"), HasSubstr("'worker/0'")));
  EXPECT_THAT(job->store()->Set("ps/3", "a:1"), refused);
  EXPECT_THAT(job->store()->MultiSet({"mine", "ps/3"}, {"1", "2"}), refused);
  EXPECT_FALSE(job->store()->Check({"mine"}).value()) << "nothing was changed";
  RemoteStore client(ConnectStore(url_).value());
  EXPECT_THAT(client.Delete("rl/actor/0").status(), StatusIs(absl::StatusCode::kPermissionDenied));
  TANDEM_EXPECT_OK(client.Set("free", "1"));
}

TEST_F(EtcdMembershipTest, AProcessThatHasNotJoinedChangesNothingInAMembersName) {
  RemoteStore stranger(ConnectStore(url_, {.member = "worker/0"}).value());
  EXPECT_THAT(stranger.Set("k", "v"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("worker/0 has not joined the job")));
}

TEST_F(EtcdMembershipTest, AProcessWithAnotherKeyIsRefusedAsItJoins) {
  const rpc::JobKey key = rpc::JobKey::Load().value(), other = key.ForJob("other");
  const auto job = OpenStore(Worker(0), kTestTimeout).value();
  Environment env = Worker(1);
  env.key = other;
  EXPECT_THAT(OpenStore(env, kTestTimeout).status(),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr(absl::StrCat("have key ", key.Id())),
                             HasSubstr(absl::StrCat("this one has key ", other.Id())))));
}

TEST_F(EtcdMembershipTest, AnObserverChangesNothingAndIsToldWhereNoJobIs) {
  const std::string elsewhere = url_ + "-empty";
  EXPECT_THAT(RemoteStore(ObserveStore(elsewhere).value()).List("").status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job has begun at")));
  const auto job = OpenStore(Worker(0), kTestTimeout).value();
  RemoteStore observer(ObserveStore(url_).value());
  EXPECT_THAT(observer.List("job/").value(), ElementsAre("job/opened/worker/0"));
  EXPECT_FALSE(observer.Set("k", "v").ok());
}

TEST_F(EtcdMembershipTest, AMemberEndsByNameWhenEtcdStandsStillForItsLeaseAndNobodyJoinsMeanwhile) {
  const auto etcd = EtcdServer::Start();
  ASSERT_NE(etcd, nullptr);
  Environment env = Worker(0);
  env.store = absl::StrCat("etcd://", etcd->address(), "/job");
  const auto member = Member::Join(env).value();
  etcd->Signal(SIGSTOP);
  const std::optional<End> end = member->AwaitEnd(kTestTimeout);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->cause, End::Cause::kStoreLost);
  EXPECT_THAT(end->reason,
              AllOf(HasSubstr(absl::StrCat("the job's store at ", env.store, " has been silent for")),
                    HasSubstr("is etcd up, and can this machine reach it?")));
  env.rank = 1;
  const absl::Time start = MonotonicNow();
  EXPECT_THAT(OpenStore(env, absl::Seconds(1)).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr(absl::StrCat("worker/1 cannot reach the job's store at ", env.store)),
                             HasSubstr("is etcd running"))));
  EXPECT_LT(MonotonicNow() - start, kTestTimeout);
  etcd->Signal(SIGCONT);
}

TEST_F(EtcdMembershipTest, AnEtcdThatIsNotThereIsNamedInTime) {
  Environment env = Worker(0);
  env.store = "etcd://127.0.0.1:1/job";
  EXPECT_THAT(OpenStore(env, absl::Seconds(1)).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("cannot reach the job's store at etcd://127.0.0.1:1/job"))));
}

}  // namespace
}  // namespace tandem::cluster
