// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/watchdog.h"

#include <atomic>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::collectives {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;
using testing::TempDir;

constexpr absl::Duration kTestTimeout = absl::Seconds(60);

Operation Reduce(absl::Duration timeout) {
  Operation o;
  o.kind = OpKind::kAllReduce;
  o.dtype = DType::kF32;
  o.sequence = 4;
  o.in.count = o.out.count = 1024;
  o.timeout = timeout;
  return o;
}

class WatchdogTest : public ::testing::Test {
 protected:
  WatchdogTest() {
    recorder_ = std::make_shared<FlightRecorder>(
        FlightRecorder::Options{.entries = 16, .directory = dir_.path(), .rank = 1});
    group_ = recorder_->AddGroup("trainers", "mpi", 1, {0, 1});
    options_.clock = &clock_;
  }
  void StartWatchdog() {
    watchdog_ = std::make_unique<Watchdog>(recorder_, options_);
    watchdog_->AddGroup(group_, [this](const absl::Status& reason) {
      ++aborts_;
      reason_ = reason;
      if (!aborted_.HasBeenNotified()) aborted_.Notify();
    });
  }
  // Lets `checks` checks pass and observes each: an operation of another group, with the shortest possible
  // time-out, is reported by it.
  void PassChecks(int checks) {
    for (int i = 0; i < checks; ++i) {
      absl::Notification looked;
      const uint32_t probe = recorder_->AddGroup("probe", "none", 0, {0});
      watchdog_->AddGroup(probe, [&](const absl::Status&) { looked.Notify(); });
      const uint64_t id = recorder_->BeginStarted(probe, Reduce(-options_.grace - absl::Seconds(1)));
      clock_.Advance(options_.interval);
      ASSERT_TRUE(looked.WaitForNotificationWithTimeout(kTestTimeout));
      recorder_->End(id, absl::OkStatus());
      watchdog_->RemoveGroup(probe);
      recorder_->RemoveGroup(probe);
    }
  }

  TempDir dir_;
  SimulatedClock clock_;
  std::shared_ptr<FlightRecorder> recorder_;
  uint32_t group_ = 0;
  Watchdog::Options options_;
  std::atomic<int> aborts_{0};
  absl::Status reason_;
  absl::Notification aborted_;
  std::unique_ptr<Watchdog> watchdog_;  // last: its thread uses the others
};

TEST_F(WatchdogTest, AStuckOperationAbortsItsGroupOnceWithItsName) {
  StartWatchdog();
  recorder_->BeginStarted(group_, Reduce(absl::Seconds(2)));
  PassChecks(6);
  EXPECT_EQ(aborts_, 0);  // within time-out and grace
  PassChecks(6);
  ASSERT_TRUE(aborted_.HasBeenNotified());
  EXPECT_EQ(aborts_, 1);
  EXPECT_THAT(reason_, StatusIs(absl::StatusCode::kDeadlineExceeded,
                                AllOf(HasSubstr("all_reduce #4 (sum of f32 x 1024)"), HasSubstr("'trainers'"),
                                      HasSubstr("time-out of 2s"), HasSubstr("5s of grace"))));
  EXPECT_FALSE(std::filesystem::is_empty(dir_.path()));  // the dump
}

TEST_F(WatchdogTest, OperationsThatEndOrHaveNoTimeoutAreLeftAlone) {
  StartWatchdog();
  recorder_->BeginStarted(group_, Reduce(absl::InfiniteDuration()));
  for (int i = 0; i < 8; ++i) {
    const uint64_t id = recorder_->BeginStarted(group_, Reduce(absl::Seconds(1)));
    PassChecks(2);
    recorder_->End(id, absl::OkStatus());
  }
  EXPECT_EQ(aborts_, 0);
}

TEST_F(WatchdogTest, WhatWaitsBehindARunningOperationIsNotStuckItself) {
  StartWatchdog();
  const uint64_t slow = recorder_->BeginStarted(group_, Reduce(absl::Hours(1)));
  recorder_->Begin(group_, Reduce(absl::Seconds(1)));
  PassChecks(20);
  EXPECT_EQ(aborts_, 0);
  recorder_->End(slow, absl::OkStatus());  // now the queued operation should start, but no thread runs it
  PassChecks(8);
  EXPECT_EQ(aborts_, 1);
  EXPECT_THAT(reason_, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("waited in the queue")));
}

TEST_F(WatchdogTest, TimeInWhichItCouldNotRunIsLoggedAndNotCounted) {
  StartWatchdog();
  recorder_->BeginStarted(group_, Reduce(absl::Seconds(2)));
  PassChecks(1);
  ::testing::internal::CaptureStderr();
  clock_.Advance(absl::Hours(1));
  PassChecks(1);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("could not run for"));
  EXPECT_EQ(aborts_, 0);
  PassChecks(8);
  EXPECT_EQ(aborts_, 1);
}

TEST_F(WatchdogTest, AnOperationThatWaitsOnAGpuIsNotStuck) {
  StartWatchdog();
  Operation operation = Reduce(absl::Seconds(2));
  operation.device = Device::Cuda(0);
  const uint64_t id = recorder_->BeginStarted(group_, operation);  // it is being issued
  recorder_->Requeue(id);                                          // it waits for the caller's kernels
  PassChecks(12);
  EXPECT_EQ(aborts_, 0);
  recorder_->Start(id);
  PassChecks(12);
  EXPECT_EQ(aborts_, 1);
}

TEST_F(WatchdogTest, KillEndsTheProcessWithAMessageInsteadOfAborting) {
  std::string message;
  options_.kill = true;
  options_.end_process = [&](const std::string& text) {
    message = text;
    aborted_.Notify();
  };
  StartWatchdog();
  recorder_->BeginStarted(group_, Reduce(-options_.grace));
  clock_.Advance(options_.interval);
  ASSERT_TRUE(aborted_.WaitForNotificationWithTimeout(kTestTimeout));
  watchdog_.reset();
  EXPECT_THAT(message, AllOf(HasSubstr("all_reduce #4"), HasSubstr("TANDEM_WATCHDOG=kill")));
  EXPECT_EQ(aborts_, 0);
  EXPECT_FALSE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(WatchdogTest, ByDefaultTheEndIsExitCode124) {
  options_.kill = true;
  options_.clock = Clock::Real();
  options_.interval = absl::Milliseconds(1);
  options_.grace = absl::ZeroDuration();
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        StartWatchdog();
        recorder_->BeginStarted(group_, Reduce(absl::Milliseconds(1)));
        absl::Notification never;
        never.WaitForNotificationWithTimeout(kTestTimeout);
      },
      ::testing::ExitedWithCode(124), "tandem watchdog: all_reduce #4");
}

TEST_F(WatchdogTest, AGroupThatWasRemovedIsNotAborted) {
  StartWatchdog();
  watchdog_->RemoveGroup(group_);
  recorder_->BeginStarted(group_, Reduce(absl::Seconds(1)));
  PassChecks(10);
  EXPECT_EQ(aborts_, 0);
}

TEST_F(WatchdogTest, RemoveWaitsForAHookThatRuns) {
  StartWatchdog();
  absl::Notification running, go_on;
  std::atomic<bool> ended{false};
  watchdog_->AddGroup(group_, [&](const absl::Status&) {
    running.Notify();
    go_on.WaitForNotification();
    ended = true;
  });
  recorder_->BeginStarted(group_, Reduce(-options_.grace));
  clock_.Advance(options_.interval);
  ASSERT_TRUE(running.WaitForNotificationWithTimeout(kTestTimeout));
  std::thread other([&] { go_on.Notify(); });
  watchdog_->RemoveGroup(group_);
  EXPECT_TRUE(ended);
  other.join();
}

TEST_F(WatchdogTest, TheEnvironmentChooses) {
  EXPECT_TRUE(Watchdog::OptionsFromEnv().enabled);
  EXPECT_FALSE(Watchdog::OptionsFromEnv().kill);
  ::setenv("TANDEM_WATCHDOG", "kill", 1);
  ::setenv("TANDEM_WATCHDOG_GRACE", "1m", 1);
  EXPECT_TRUE(Watchdog::OptionsFromEnv().kill);
  EXPECT_EQ(Watchdog::OptionsFromEnv().grace, absl::Minutes(1));
  ::setenv("TANDEM_WATCHDOG", "off", 1);
  EXPECT_FALSE(Watchdog::OptionsFromEnv().enabled);
  ::setenv("TANDEM_WATCHDOG", "cat", 1);
  ::setenv("TANDEM_WATCHDOG_GRACE", "soon", 1);
  EXPECT_TRUE(Watchdog::OptionsFromEnv().enabled);
  EXPECT_EQ(Watchdog::OptionsFromEnv().grace, Watchdog::Options().grace);
  ::unsetenv("TANDEM_WATCHDOG");
  ::unsetenv("TANDEM_WATCHDOG_GRACE");
}

}  // namespace
}  // namespace tandem::collectives
