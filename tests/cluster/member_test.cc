// SPDX-License-Identifier: Apache-2.0
#include "cluster/member.h"

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "cluster/process.h"
#include "cluster/store/store_server.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLong = absl::Seconds(60);

// The store of a job, and processes that join it.
class MemberTest : public ::testing::Test {
 protected:
  Environment Env(const std::string& role, int rank, bool main_role) const {
    Environment env;
    env.role = role;
    env.worker = main_role;
    env.rank = main_role ? rank : 0;
    env.role_rank = rank;
    env.world_size = env.role_world_size = 2;
    env.store = absl::StrCat("127.0.0.1:", store_->port());
    return env;
  }
  std::unique_ptr<Member> Join(const Environment& env, MemberOptions options = {}) const {
    auto member = Member::Join(env, std::move(options));
    TANDEM_CHECK_MSG(member.ok(), member.status().ToString());
    return *std::move(member);
  }
  std::unique_ptr<Member> Worker(int rank, MemberOptions options = {}) const {
    return Join(Env("worker", rank, /*main_role=*/true), std::move(options));
  }
  std::optional<MemberStatus> StatusOf(const std::string& name) const {
    for (MemberStatus& status : store_->membership()->Statuses()) {
      if (status.name == name) return std::move(status);
    }
    return std::nullopt;
  }

  std::unique_ptr<StoreServer> store_ = *StoreServer::Start("127.0.0.1:0");
};

TEST_F(MemberTest, AProcessThatHasJoinedIsAMemberUntilItLeaves) {
  const auto worker = Worker(0);
  EXPECT_THAT(store_->membership()->Members(), ::testing::ElementsAre("worker/0"));
  EXPECT_FALSE(worker->end().has_value());
  TANDEM_EXPECT_OK(worker->Leave(kLong));
  EXPECT_TRUE(StatusOf("worker/0")->left);
  TANDEM_EXPECT_OK(worker->Leave(kLong));
}

TEST_F(MemberTest, OnlyTheJobCannotGoOnWithoutMembersOfTheMainRoleAndPlainServers) {
  EXPECT_FALSE(MayBeReplaced(Env("worker", 0, true)));
  EXPECT_FALSE(MayBeReplaced(Env("learner", 0, true)));
  EXPECT_TRUE(MayBeReplaced(Env("actor", 0, false)));
  EXPECT_TRUE(MayBeReplaced(Env("replay", 0, false)));
  Environment server = Env("ps", 0, false);
  EXPECT_FALSE(MayBeReplaced(server));
  server.ps_followers = 1;
  EXPECT_TRUE(MayBeReplaced(server));
}

TEST_F(MemberTest, AnActorThatIsSilentEndsNobodyElse) {
  const auto worker = Worker(0);
  Join(Env("actor", 0, false), {.lease = absl::Milliseconds(100)}).reset();
  // Its lease runs out, and worker/0 hears nothing of it.
  const absl::Time deadline = MonotonicNow() + kLong;
  while (StatusOf("actor/0")->silent <= absl::Milliseconds(100) && MonotonicNow() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_FALSE(store_->membership()->State().ended);
  EXPECT_FALSE(worker->end().has_value());
}

TEST_F(MemberTest, TheJobsFailureIsTheEndOfAllMembers) {
  const auto first = Worker(0);
  const auto second = Worker(1);
  TANDEM_EXPECT_OK(second->FailJob("the disk is full"));
  for (Member* member : {first.get(), second.get()}) {
    member->ReportStatus();
    const std::optional<End> end = member->AwaitEnd(kLong);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->cause, End::Cause::kJobFailed);
    EXPECT_EQ(end->exit_code(), 1);
    EXPECT_THAT(end->failure,
                StatusIs(absl::StatusCode::kAborted, "the job failed: worker/1: the disk is full"));
    EXPECT_EQ(end->reason, "the job has failed: worker/1: the disk is full");
  }
}

TEST_F(MemberTest, TheJobsSuccessIsAnEndWithoutAFailure) {
  const auto worker = Worker(0);
  TANDEM_EXPECT_OK(store_->membership()->End("worker/1", /*failed=*/false, "training has finished"));
  worker->ReportStatus();
  const std::optional<End> end = worker->AwaitEnd(kLong);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->cause, End::Cause::kJobSucceeded);
  EXPECT_EQ(end->exit_code(), 0);
  EXPECT_EQ(end->reason, "done: worker/1: training has finished");
}

TEST_F(MemberTest, TheFirstEndCounts) {
  const auto worker = Worker(0);
  worker->Fail(absl::DataLossError("the log is damaged"));
  TANDEM_EXPECT_OK(store_->membership()->End("worker/1", /*failed=*/true, "later"));
  worker->ReportStatus();
  EXPECT_TRUE(worker->AwaitJobEnd(kLong).has_value());
  const std::optional<End> end = worker->AwaitEnd(kLong);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->cause, End::Cause::kOwnFailure);
  EXPECT_THAT(end->failure, StatusIs(absl::StatusCode::kDataLoss, "the log is damaged"));
  EXPECT_EQ(end->exit_code(), 1);
}

TEST_F(MemberTest, AStoreThatIsGoneForALeaseIsAnEndOfItsOwn) {
  const auto worker = Worker(0, {.lease = absl::Seconds(2)});
  store_->Shutdown(absl::ZeroDuration());
  const std::optional<End> end = worker->AwaitEnd(kLong);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->cause, End::Cause::kStoreLost);
  EXPECT_EQ(end->exit_code(), 1);
  EXPECT_THAT(end->reason, HasSubstr("the job's store at 127.0.0.1:"));
}

TEST_F(MemberTest, AServerOutlivesItsJob) {
  const auto replay = Join(Env("replay", 0, false), {.lease = absl::Seconds(2), .outlives_job = true});
  TANDEM_EXPECT_OK(store_->membership()->End("learner/0", /*failed=*/true, "gone"));
  replay->ReportStatus();
  const int port = store_->port();
  store_.reset();
  EXPECT_FALSE(replay->AwaitEnd(absl::Seconds(3)).has_value());  // longer than a lease
  // A learner that is started again brings a new store, in which the server is a member again.
  auto later = StoreServer::Start(absl::StrCat("127.0.0.1:", port));
  TANDEM_ASSERT_OK(later);
  store_ = *std::move(later);
  const absl::Time deadline = MonotonicNow() + kLong;
  while (!StatusOf("replay/0").has_value() && MonotonicNow() < deadline) std::this_thread::yield();
  EXPECT_TRUE(StatusOf("replay/0").has_value());
  EXPECT_FALSE(replay->end().has_value());
}

TEST_F(MemberTest, LeavingDoesNotBlockLongerThanItsTimeoutWhileTheStoreIsGone) {
  const auto worker = Worker(0);
  store_->Shutdown(absl::ZeroDuration());
  store_.reset();
  const absl::Time before = MonotonicNow();
  EXPECT_THAT(worker->Leave(absl::Milliseconds(200)), Not(IsOk()));
  EXPECT_LT(MonotonicNow() - before, absl::Seconds(10));
}

// The second one takes the first one's place in the list of members, as a process does that was started
// again.
TEST_F(MemberTest, TwoProcessesOfOneNameAreOneMember) {
  const auto first = Worker(0);
  const auto second = Worker(0);
  EXPECT_THAT(store_->membership()->Members(), ::testing::ElementsAre("worker/0"));
  EXPECT_FALSE(first->end().has_value());
  EXPECT_FALSE(second->end().has_value());
}

TEST_F(MemberTest, TheMembersFailureNamesThePeerThatDied) {
  const auto first = Worker(0, {.lease = absl::Seconds(4)});
  Worker(1, {.lease = absl::Milliseconds(500)}).reset();
  EXPECT_EQ(first->FailJobUnlessPeerDied(absl::UnavailableError("connection reset")), 1);
  const JobState state = store_->membership()->State();
  EXPECT_TRUE(state.failed);
  EXPECT_THAT(state.reason, HasSubstr("worker/1 has been silent"));
}

TEST_F(MemberTest, AFailureOfItsOwnIsReportedAtOnce) {
  const auto worker = Worker(0);
  EXPECT_EQ(worker->FailJobUnlessPeerDied(absl::InvalidArgumentError("no such column")), 1);
  EXPECT_EQ(store_->membership()->State().reason, "worker/0: no such column");
}

TEST_F(MemberTest, AFailureInTheNameOfARoleEndsTheJobThoughItsMembersMayFail) {
  store_->membership()->AllowRestart("actor");
  const auto actor = Join(Env("actor", 0, false));
  TANDEM_EXPECT_OK(actor->FailJob("too few", kLong));
  EXPECT_FALSE(store_->membership()->State().ended);
  TANDEM_EXPECT_OK(actor->FailJob("too few", kLong, "actors"));
  EXPECT_EQ(store_->membership()->State().reason, "actors: too few");
}

TEST_F(MemberTest, AStoreThatIsAnotherProgramIsNamedAsSuch) {
  // It accepts connections, and never answers.
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener, 16), 0);
  socklen_t size = sizeof(address);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Environment env = Env("worker", 0, true);
  env.store = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  EXPECT_THAT(
      Member::Join(env, {.join_timeout = absl::Seconds(1)}).status().message(),
      AllOf(HasSubstr(absl::StrCat("a server listens at ", env.store)), HasSubstr("another program")));
  ::close(listener);
  // Nothing listens there any more.
  EXPECT_THAT(Member::Join(env, {.join_timeout = absl::Seconds(1)}).status().message(),
              AllOf(HasSubstr(env.store), Not(HasSubstr("another program"))));
}

TEST(ProcessTest, ASignalWhileItJoinsEndsTheProcessAtOnceWithItsCode) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        const auto process = *Process::Start({.exit_code = 75});
        std::thread killer([&process] {
          while (process->waits().Longest().empty()) std::this_thread::yield();
          ::kill(::getpid(), SIGTERM);
        });
        killer.detach();
        Environment env;
        env.world_size = 2;
        env.rank = 1;
        env.store = "127.0.0.1:1";  // nobody is there
        (void)Member::Join(env, {.join_timeout = absl::Hours(1), .process = process.get()});
      },
      ::testing::ExitedWithCode(75),
      "stopped by SIGTERM; it has waited for the job's store at 127.0.0.1:1 for ");
}

TEST(ProcessTest, AProcessWhoseJobHasFailedEndsUnlessItsProgramKnows) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const bool knows : {false, true}) {
    EXPECT_EXIT(
        {
          const auto store = *StoreServer::Start("127.0.0.1:0");
          Environment env;
          env.world_size = 2;
          env.store = absl::StrCat("127.0.0.1:", store->port());
          const auto member = *Member::Join(
              env, {.lease = absl::Seconds(2), .exit_after = absl::Milliseconds(knows ? 60'000 : 100)});
          TANDEM_EXPECT_OK(store->membership()->End("worker/1", /*failed=*/true, "the disk is full"));
          member->ReportStatus();
          if (knows) {
            (void)member->AwaitEnd(kLong);
            (void)member->Leave(kLong);
            std::_Exit(3);
          }
          absl::Notification never;
          never.WaitForNotification();
        },
        ::testing::ExitedWithCode(knows ? 3 : 1),
        knows ? "" : "the job has failed: worker/1: the disk is full");
  }
}

// Another thread may hang in a write, and hold the stream's lock.
TEST(ProcessTest, AProcessEndsThoughAStreamIsLocked) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        absl::Notification locked;
        std::thread holder([&] {
          ::flockfile(stdout);
          locked.Notify();
          absl::Notification never;
          never.WaitForNotification();
        });
        locked.WaitForNotification();
        Process::Exit(5, "the job has failed");
      },
      ::testing::ExitedWithCode(5), "the job has failed");
}

TEST(ProcessTest, ASignalIsAnEndOfAMember) {
  const auto process = *Process::Start();
  const auto store = *StoreServer::Start("127.0.0.1:0");
  Environment env;
  env.store = absl::StrCat("127.0.0.1:", store->port());
  const auto member = *Member::Join(env, {.process = process.get()});
  member->EndOnSignals();
  ASSERT_EQ(::kill(::getpid(), SIGTERM), 0);
  const std::optional<End> end = member->AwaitEnd(kLong);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->cause, End::Cause::kSignal);
  EXPECT_EQ(end->signal, SIGTERM);
  EXPECT_EQ(end->exit_code(), 0);
}

TEST(ProcessTest, ASignalBeforeItWaitsForAnythingEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::signal(SIGINT, SIG_DFL);  // a shell's background job ignores it
        const auto process = *Process::Start({.exit_code = 7});
        ::kill(::getpid(), SIGINT);
        absl::Notification never;
        never.WaitForNotification();
      },
      ::testing::ExitedWithCode(7), "stopped by SIGINT before it had begun");
}

TEST(ProcessTest, TheFirstSignalAsksToStopAndASecondOneEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        ::signal(SIGINT, SIG_DFL);
        std::atomic<bool> stop{false};
        const auto process = *Process::Start();
        process->StopOnSignals(&stop, "saves and ends");
        ::kill(::getpid(), SIGINT);
        while (!stop) std::this_thread::yield();
        ::kill(::getpid(), SIGINT);
        absl::Notification never;
        never.WaitForNotification();
      },
      ::testing::KilledBySignal(SIGINT), "saves and ends");
}

TEST(ProcessTest, ASigtermThatIsPassedOnTwiceAsksToStopOnce) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atomic<bool> stop{false};
        const auto process = *Process::Start();
        process->StopOnSignals(&stop);
        ::kill(::getpid(), SIGTERM);
        while (!stop) std::this_thread::yield();
        const absl::Time stopped = MonotonicNow();
        ::kill(::getpid(), SIGTERM);
        // A busy machine may let a second pass before the second signal is there.
        while (MonotonicNow() < stopped + absl::Seconds(1)) std::this_thread::yield();
        ::kill(::getpid(), SIGTERM);
        absl::Notification never;
        never.WaitForNotification();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(ProcessTest, WaitsForASignalWithoutAJob) {
  const auto process = *Process::Start();
  std::thread killer([] { ::kill(::getpid(), SIGINT); });
  EXPECT_EQ(process->AwaitSignal(), SIGINT);
  killer.join();
}

}  // namespace
}  // namespace tandem::cluster
