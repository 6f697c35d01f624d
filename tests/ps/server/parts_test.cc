// The small machines inside the server.

#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/server/gate.h"
#include "ps/server/task_executor.h"
#include "rpc/deferred_calls.h"

namespace tandem::ps {
namespace {

using ::testing::ElementsAre;

TEST(DeferredCalls, GivesUpInOrderOfDeadlinesAndOnlyWhatIsStillParked) {
  SimulatedClock clock;
  rpc::DeferredCalls deferred(&clock);
  absl::Mutex mutex;
  std::vector<int> given_up;
  absl::Notification last;
  const auto park = [&](int seconds) {
    const uint64_t ticket = deferred.NewTicket();
    deferred.Defer(ticket, clock.Now() + absl::Seconds(seconds),
                   [&, seconds](rpc::DeferredCalls::Reason reason) {
                     EXPECT_EQ(reason, rpc::DeferredCalls::Reason::kDeadline);
                     {
                       absl::MutexLock lock(&mutex);
                       given_up.push_back(seconds);
                     }
                     if (seconds == 5) last.Notify();
                   });
    return ticket;
  };
  park(5);
  const uint64_t three = park(3);
  park(1);
  const uint64_t hundred = park(100);
  EXPECT_TRUE(deferred.Resume(three));
  EXPECT_FALSE(deferred.Resume(three));
  clock.Advance(absl::Seconds(5));
  ASSERT_TRUE(last.WaitForNotificationWithTimeout(absl::Minutes(1)));
  EXPECT_TRUE(deferred.Resume(hundred));
  EXPECT_EQ(deferred.size(), 0);
  absl::MutexLock lock(&mutex);
  EXPECT_THAT(given_up, ElementsAre(1, 5));
}

TEST(DeferredCalls, StopGivesUpOnWhatIsParkedAndWhatComes) {
  rpc::DeferredCalls deferred(Clock::Real());
  int stopped = 0;
  const auto park = [&] {
    deferred.Defer(deferred.NewTicket(), absl::InfiniteFuture(), [&](rpc::DeferredCalls::Reason reason) {
      stopped += reason == rpc::DeferredCalls::Reason::kStopped;
    });
  };
  park();
  EXPECT_EQ(stopped, 0);
  deferred.Stop();
  EXPECT_EQ(stopped, 1);
  park();
  EXPECT_EQ(stopped, 2);
}

TEST(Gate, LetsNobodyInWhileClosedAndHandsBackWhatItKept) {
  Gate gate;
  ASSERT_TRUE(gate.TryEnter());
  absl::Notification closed;
  std::thread closer([&] {
    gate.Close();
    closed.Notify();
  });
  gate.Leave();
  ASSERT_TRUE(closed.WaitForNotificationWithTimeout(absl::Minutes(1)));
  closer.join();
  EXPECT_FALSE(gate.TryEnter());
  int ran = 0;
  EXPECT_FALSE(gate.EnterOrDefer([&] { ++ran; }));
  for (auto& kept : gate.Open()) kept();
  EXPECT_EQ(ran, 1);
  EXPECT_TRUE(gate.EnterOrDefer([&] { ++ran; }));
  EXPECT_EQ(ran, 1);
}

TEST(TaskExecutor, RunsAllThatWasPostedBeforeStop) {
  std::atomic<int> ran{0};
  TaskExecutor executor(3);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(executor.Post([&] { ++ran; }));
  executor.Stop();
  EXPECT_EQ(ran, 100);
  EXPECT_FALSE(executor.Post([&] { ++ran; }));
}

}  // namespace
}  // namespace tandem::ps
