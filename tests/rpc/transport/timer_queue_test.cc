// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/timer_queue.h"

#include <memory>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/rpc/echo_service.h"

namespace tandem::rpc {
namespace {

using ::testing::ElementsAre;
using testing::kTestTimeout;

TEST(TimerQueueTest, RunsTasksByTimeAndEqualOnesInOrder) {
  std::vector<int> ran;  // used by the queue's thread only, and read after `last`
  absl::Notification go, last;
  TimerQueue queue;
  queue.RunSoon([&go] { go.WaitForNotification(); });
  const absl::Time now = absl::Now();
  queue.Schedule(now + absl::Milliseconds(20), [&] {
    ran.push_back(3);
    last.Notify();
  });
  queue.Schedule(now, [&] { ran.push_back(1); });
  queue.Schedule(now, [&] { ran.push_back(2); });
  go.Notify();
  ASSERT_TRUE(last.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_GE(absl::Now(), now + absl::Milliseconds(20));
  EXPECT_THAT(ran, ElementsAre(1, 2, 3));
}

TEST(TimerQueueTest, HurryAllMakesEveryTaskDue) {
  TimerQueue queue;
  absl::Notification waiting, later;
  queue.Schedule(absl::InfiniteFuture(), [&] { waiting.Notify(); });
  queue.RunAllNow();
  EXPECT_TRUE(waiting.WaitForNotificationWithTimeout(kTestTimeout));
  queue.Schedule(absl::InfiniteFuture(), [&] { later.Notify(); });
  EXPECT_TRUE(later.WaitForNotificationWithTimeout(kTestTimeout));
}

TEST(TimerQueueTest, ACancelledTaskDoesNotRunAndLetsGoOfWhatItHeld) {
  TimerQueue queue;
  bool ran = false;
  auto held = std::make_shared<int>();
  TimerQueue::Id id = queue.Schedule(absl::Now() + absl::Hours(1), [&ran, held] { ran = true; });
  EXPECT_EQ(held.use_count(), 2);
  queue.Cancel(id);
  EXPECT_EQ(held.use_count(), 1);
  queue.Cancel(id);  // there is nothing to cancel any more
  queue.RunAllNow();
  absl::Notification after;
  queue.RunSoon([&] { after.Notify(); });
  ASSERT_TRUE(after.WaitForNotificationWithTimeout(kTestTimeout));
  EXPECT_FALSE(ran);
}

TEST(TimerQueueTest, DestructionDropsWaitingTasks) {
  auto held = std::make_shared<int>();
  {
    TimerQueue queue;
    queue.Schedule(absl::InfiniteFuture(), [held] { FAIL(); });
  }
  EXPECT_EQ(held.use_count(), 1);
}

TEST(TimerQueueTest, AStoppedQueueDropsWhatItIsGivenAlsoByItsOwnLastTask) {
  auto held = std::make_shared<int>();
  TimerQueue queue;
  absl::Notification began, stopping;
  queue.RunSoon([&] {
    began.Notify();
    stopping.WaitForNotificationWithTimeout(kTestTimeout);
    for (int i = 0; i < 1000; ++i) queue.RunSoon([held] {});
  });
  queue.Schedule(absl::InfiniteFuture(), [held] { FAIL(); });
  ASSERT_TRUE(began.WaitForNotificationWithTimeout(kTestTimeout));
  std::thread stopper([&] { queue.Stop(); });
  stopping.Notify();
  stopper.join();
  queue.Schedule(absl::InfinitePast(), [held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
  queue.Stop();
}

}  // namespace
}  // namespace tandem::rpc
