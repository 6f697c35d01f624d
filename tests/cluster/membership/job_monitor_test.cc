// SPDX-License-Identifier: Apache-2.0
#include "cluster/membership/job_monitor.h"

#include <unistd.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cluster/join.h"
#include "cluster/store/memory_store.h"
#include "cluster/store/remote_store.h"
#include "cluster/store/store_server.h"
#include "cluster/store/store_service.h"
#include "rpc/connect.h"
#include "rpc/transport/loopback.h"
#include "tandem/v1/store.pb.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cluster {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kMonitorLease = absl::Seconds(10);

class JobMonitorTest : public ::testing::Test {
 protected:
  JobMonitorTest() {
    auto services = std::make_shared<std::vector<rpc::Service>>();
    services->push_back(service_.MakeService());
    const auto injector = [this](absl::string_view, int64_t) {
      absl::MutexLock lock(&mutex_);
      ++calls_;
      rpc::Fault fault;
      if (broken_) fault.kind = rpc::Fault::Kind::kFailBefore;
      if (hung_) fault.kind = rpc::Fault::Kind::kNeverRespond;
      return fault;
    };
    channel_ = rpc::ConnectLoopback(services, injector);
  }

  std::unique_ptr<JobMonitor> Join(const std::string& member) {
    auto monitor =
        JobMonitor::Start(channel_, {member, kMonitorLease, &clock_}, [this](const JobState& state) {
          ++ends_;
          last_ = state;
          ended_.Notify();
        });
    return std::move(monitor).value();
  }

  // Moves the clock in small steps, each time waiting until the monitor's heartbeat of that step has been
  // sent.
  void LetHeartbeatsPass(int beats) {
    for (int i = 0; i < beats; ++i) {
      absl::MutexLock lock(&mutex_);
      const int before = calls_;
      clock_.Advance(kMonitorLease / 4);
      auto called = [&]() { return calls_ > before; };
      ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&called), absl::Seconds(30)));
    }
  }
  void Break() {
    absl::MutexLock lock(&mutex_);
    broken_ = true;
  }
  // Moves the clock until the monitor has reported the end.
  void AdvanceUntilEnded() {
    for (int i = 0; i < 3000 && !ended_.WaitForNotificationWithTimeout(absl::Milliseconds(10)); ++i) {
      clock_.Advance(kMonitorLease / 8);
    }
    ASSERT_TRUE(ended_.HasBeenNotified());
  }

  SimulatedClock clock_;
  MemoryStore memory_;
  LocalMembership membership_{&clock_};
  StoreService service_{&memory_, &membership_};
  absl::Mutex mutex_;
  int calls_ = 0;
  bool broken_ = false, hung_ = false;
  std::atomic<int> ends_{0};
  JobState last_;
  absl::Notification ended_;
  std::shared_ptr<rpc::Channel> channel_;  // first to go: its calls refer to all above
};

TEST_F(JobMonitorTest, HeartbeatsKeepAMemberAlive) {
  auto monitor = Join("worker/0");
  LetHeartbeatsPass(12);
  EXPECT_FALSE(membership_.State().ended);
  TANDEM_EXPECT_OK(monitor->Leave());
  clock_.Advance(absl::Hours(1));
  EXPECT_FALSE(membership_.State().ended);
  EXPECT_EQ(ends_.load(), 0);
}

TEST_F(JobMonitorTest, AMemberThatVanishesWithoutLeavingEndsTheJob) {
  Join("worker/0").reset();
  clock_.Advance(kMonitorLease + absl::Seconds(1));
  EXPECT_THAT(membership_.State().reason, HasSubstr("worker/0 has been silent for 11s (lease 10s)"));
}

TEST_F(JobMonitorTest, TheEndIsReportedOnce) {
  auto monitor = Join("worker/0");
  TANDEM_EXPECT_OK(membership_.End("worker/1", true, "out of memory"));
  AdvanceUntilEnded();
  EXPECT_EQ(last_.reason, "worker/1: out of memory");
  EXPECT_TRUE(monitor->state().failed);
  clock_.Advance(absl::Hours(1));
  TANDEM_EXPECT_OK(monitor->Leave());
  EXPECT_EQ(ends_.load(), 1);
}

TEST_F(JobMonitorTest, AReportedFailureReachesAllMembers) {
  auto monitor = Join("worker/0");
  TANDEM_ASSERT_OK(monitor->ReportFailure("bad line 7 in train.csv"));
  EXPECT_EQ(membership_.State().reason, "worker/0: bad line 7 in train.csv");
  AdvanceUntilEnded();
  EXPECT_TRUE(last_.failed);
}

TEST_F(JobMonitorTest, AFailureReasonThatIsNoUtf8ReachesAllMembers) {
  auto monitor = Join("worker/0");
  TANDEM_ASSERT_OK(monitor->ReportFailure("cannot open caf\xE9.csv\nline 2"));
  EXPECT_EQ(membership_.State().reason, "worker/0: cannot open caf\xEF\xBF\xBD.csv\\nline 2");
  AdvanceUntilEnded();
}

TEST_F(JobMonitorTest, SuccessEndsTheJobWithoutFailure) {
  auto monitor = Join("worker/0");
  TANDEM_ASSERT_OK(monitor->ReportSuccess("trained"));
  AdvanceUntilEnded();
  EXPECT_FALSE(last_.failed);
}

TEST_F(JobMonitorTest, AStoreThatIsSilentForALeaseIsAFailure) {
  auto monitor = Join("worker/0");
  Break();
  AdvanceUntilEnded();
  EXPECT_TRUE(last_.failed);
  EXPECT_THAT(last_.reason,
              AllOf(HasSubstr("the job's store at loopback has been silent for"), HasSubstr("killed?")));
}

TEST_F(JobMonitorTest, LeavingDoesNotWaitForAHeartbeatThatGetsNoAnswer) {
  auto started = JobMonitor::Start(channel_, {"worker/0", absl::Hours(4), &clock_}, nullptr);
  TANDEM_ASSERT_OK(started);
  {
    absl::MutexLock lock(&mutex_);
    hung_ = true;
  }
  clock_.Advance(absl::Hours(1));
  {
    absl::MutexLock lock(&mutex_);
    const auto sent = [this] { return calls_ > 1; };
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&sent), absl::Seconds(30)));
  }
  // The heartbeat would wait an hour.
  EXPECT_THAT((*started)->Leave(absl::Milliseconds(100)), Not(tandem::testing::IsOk()));
}

TEST_F(JobMonitorTest, AMemberThatOutlivesItsJobGoesOnAfterIt) {
  auto started = JobMonitor::Start(channel_,
                                   {.member = "replay/0",
                                    .lease = kMonitorLease,
                                    .clock = &clock_,
                                    .replaceable = true,
                                    .outlives_job = true},
                                   [this](const JobState&) { ++ends_; });
  TANDEM_ASSERT_OK(started);
  TANDEM_EXPECT_OK(membership_.End("learner/0", /*failed=*/true, "gone"));
  LetHeartbeatsPass(6);
  EXPECT_EQ(ends_.load(), 0);
}

TEST_F(JobMonitorTest, AStoreThatReturnsWithinTheLeaseIsNoFailure) {
  auto monitor = Join("worker/0");
  Break();
  LetHeartbeatsPass(1);
  {
    absl::MutexLock lock(&mutex_);
    broken_ = false;
  }
  LetHeartbeatsPass(8);
  EXPECT_EQ(ends_.load(), 0);
  TANDEM_EXPECT_OK(monitor->Leave());
}

TEST_F(JobMonitorTest, ARefusedMemberGetsTheReason) {
  auto monitor = JobMonitor::Start(channel_, {"", kMonitorLease, &clock_}, nullptr);
  EXPECT_THAT(monitor, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("name")));
}

TEST_F(JobMonitorTest, HeartbeatsCarryTheProcessStatus) {
  auto status = std::make_shared<rpc::ProcessStatus>("worker/0", /*epoch=*/3);
  status->SetDiagnostics("127.0.0.1:4711");
  auto started =
      JobMonitor::Start(channel_, {"worker/0", kMonitorLease, &clock_, status}, [](const JobState&) {});
  TANDEM_ASSERT_OK(started);
  status->SetStep(77);
  status->SetTrainEpoch(2);
  status->SetState("training");
  LetHeartbeatsPass(2);  // the second is sent when the first has its response
  tandem::v1::MembersResponse members;
  TANDEM_ASSERT_OK(
      rpc::CallProto(*channel_, "/tandem.v1.Store/Members", tandem::v1::MembersRequest(), &members, {}));
  EXPECT_FALSE(members.job().ended());
  ASSERT_EQ(members.members_size(), 1);
  const tandem::v1::HeartbeatRequest& last = members.members(0).last();
  EXPECT_EQ(last.member(), "worker/0");
  EXPECT_EQ(last.state(), "training");
  EXPECT_EQ(last.step(), 77u);
  EXPECT_EQ(last.epoch(), 3);
  EXPECT_EQ(last.train_epoch(), 2);
  EXPECT_EQ(last.pid(), ::getpid());
  EXPECT_EQ(last.diagnostics(), "127.0.0.1:4711");
  EXPECT_EQ(last.lease_ms(), absl::ToInt64Milliseconds(kMonitorLease));
  TANDEM_ASSERT_OK((*started)->Leave());
}

TEST_F(JobMonitorTest, AStatusIsReportedAtOnceIfAskedFor) {
  auto status = std::make_shared<rpc::ProcessStatus>("ps/0");
  auto started = JobMonitor::Start(channel_, {"ps/0", kMonitorLease, &clock_, status, /*replaceable=*/true},
                                   [](const JobState&) {});
  TANDEM_ASSERT_OK(started);
  status->SetAddress("10.0.0.1:7000");
  (*started)->ReportStatus();
  tandem::v1::MembersResponse members;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  do {  // the clock of the heartbeats stands still
    TANDEM_ASSERT_OK(
        rpc::CallProto(*channel_, "/tandem.v1.Store/Members", tandem::v1::MembersRequest(), &members, {}));
    ASSERT_EQ(members.members_size(), 1);
  } while (members.members(0).last().address().empty() && absl::Now() < deadline);
  EXPECT_EQ(members.members(0).last().address(), "10.0.0.1:7000");
  EXPECT_TRUE(members.members(0).last().replaceable());
  TANDEM_ASSERT_OK((*started)->Leave());
}

// A server that is started again at its address.
struct RestartedStore {
  explicit RestartedStore(std::string data) : disk{.directory = std::move(data), .on_failure = nullptr} {}
  void Start() {
    server = StoreServer::Start(address, Clock::Real(), nullptr, {.disk = disk}).value();
    address = absl::StrCat("127.0.77.11:", server->port());
  }
  void Restart() {
    server.reset();
    Start();
  }
  // Waits until the member's last heartbeat says that it has registered with this store.
  bool AwaitRegistered(const std::string& member) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (absl::Now() < deadline) {
      for (const MemberStatus& status : server->membership()->Statuses()) {
        if (status.name == member && status.report.registered_with == server->membership()->incarnation()) {
          return true;
        }
      }
      absl::SleepFor(absl::Milliseconds(1));
    }
    return false;
  }
  StoreDiskOptions disk;
  std::string address = "127.0.77.11:0";
  std::unique_ptr<StoreServer> server;
};

TEST(StoreLostTest, WhatAMemberOwnsIsRegisteredAgainUntilThatSucceeds) {
  RestartedStore store("");
  store.Start();
  const std::shared_ptr<rpc::Channel> channel = ConnectStore(store.address).value();
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto monitor, JobMonitor::Start(channel, {.member = "ps/0", .lease = absl::Seconds(8)}, nullptr));
  RemoteStore client(channel, absl::Seconds(60));
  std::atomic<int> calls{0}, others{0};
  const auto first = monitor->OnStoreLost(
      [&] { return ++calls < 3 ? absl::UnavailableError("not yet") : client.Set("address", "here"); });
  auto gone = monitor->OnStoreLost([&] {
    ++others;
    return absl::OkStatus();
  });
  gone.reset();  // it owns nothing any more
  EXPECT_EQ(store.server->membership()->SinceMemoryLost(), std::nullopt);
  store.Restart();
  EXPECT_EQ(client.Get("address", absl::Seconds(60)).value(), "here");
  EXPECT_TRUE(store.AwaitRegistered("ps/0"));
  EXPECT_EQ(calls.load(), 3);
  EXPECT_EQ(others.load(), 0);
  EXPECT_NE(store.server->membership()->SinceMemoryLost(), std::nullopt);
  tandem::v1::MembersResponse members;
  TANDEM_ASSERT_OK(
      rpc::CallProto(*channel, "/tandem.v1.Store/Members", tandem::v1::MembersRequest(), &members, {}));
  ASSERT_EQ(members.members_size(), 1);
  EXPECT_TRUE(members.members(0).came_back());
  EXPECT_EQ(members.members(0).last().registered_with(), members.job().incarnation());
  EXPECT_GT(members.lost_memory_ms(), 0);
  TANDEM_EXPECT_OK(monitor->Leave());
}

TEST(StoreLostTest, AStoreOnADiskLosesNothing) {
  const testing::TempDir directory;
  RestartedStore store(directory.File("d"));
  store.Start();
  const std::shared_ptr<rpc::Channel> channel = ConnectStore(store.address).value();
  TANDEM_ASSERT_OK_AND_ASSIGN(
      const auto monitor, JobMonitor::Start(channel, {.member = "ps/0", .lease = absl::Seconds(8)}, nullptr));
  std::atomic<int> calls{0};
  const auto registration = monitor->OnStoreLost([&] {
    ++calls;
    return absl::OkStatus();
  });
  TANDEM_ASSERT_OK(RemoteStore(channel, absl::Seconds(60)).Set("address", "here"));
  store.Restart();
  EXPECT_TRUE(store.AwaitRegistered("ps/0"));
  EXPECT_EQ(store.server->store()->TryGet("address"), "here");
  EXPECT_EQ(store.server->membership()->SinceMemoryLost(), std::nullopt);
  EXPECT_EQ(calls.load(), 0);
  TANDEM_EXPECT_OK(monitor->Leave());
}

}  // namespace
}  // namespace tandem::cluster
