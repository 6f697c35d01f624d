// SPDX-License-Identifier: Apache-2.0
#include "base/timed_wait.h"

#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ticks.h"
#include "gtest/gtest.h"
#include "tests/testing/wall_clock.h"

namespace tandem {
namespace {

using testing::WallClockStep;

constexpr absl::Duration kShort = absl::Milliseconds(30);
constexpr absl::Duration kLong = absl::Seconds(60);

absl::Duration Took(int64_t begin_ns) { return absl::Nanoseconds(SteadyNanoseconds() - begin_ns); }

// absl::Now() reads the clock every two seconds and counts processor cycles in between, so it sees a step
// late.
absl::Time WallTime() {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  return absl::TimeFromTimespec(time);
}

class TimedWaitTest : public ::testing::TestWithParam<absl::Duration> {};

TEST_P(TimedWaitTest, AStepOfTheWallClockLeavesTheMonotonicTimeAlone) {
  const absl::Time wall = WallTime();
  const absl::Time before = MonotonicNow();
  const WallClockStep step(GetParam());
  EXPECT_LT(MonotonicNow() - before, kLong);
  EXPECT_GE(MonotonicNow(), before);
  EXPECT_LT(absl::AbsDuration(WallTime() - wall - GetParam()), kLong);  // the step itself works
}

TEST_P(TimedWaitTest, ATimeoutLastsAsLongAsItSaysAfterAStep) {
  const WallClockStep step(GetParam());
  absl::Mutex mutex;
  const bool never = false;
  const int64_t begin = SteadyNanoseconds();
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(AwaitFor(&mutex, absl::Condition(&never), kShort));
  EXPECT_GE(Took(begin), kShort);
  EXPECT_LT(Took(begin), kLong);
}

TEST_P(TimedWaitTest, ADeadlineFromBeforeAStepIsKept) {
  absl::Mutex mutex;
  const bool never = false;
  const int64_t begin = SteadyNanoseconds();
  const absl::Time deadline = MonotonicNow() + kShort;
  const WallClockStep step(GetParam());
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(Clock::Real()->AwaitUntil(&mutex, absl::Condition(&never), deadline));
  EXPECT_GE(Took(begin), kShort);
  EXPECT_LT(Took(begin), kLong);
}

TEST_P(TimedWaitTest, ConditionVariablesAndNotificationsKeepTheirDeadlines) {
  const WallClockStep step(GetParam());
  absl::Mutex mutex;
  absl::CondVar changed;
  const int64_t begin = SteadyNanoseconds();
  const absl::Time deadline = MonotonicNow() + kShort;
  {
    absl::MutexLock lock(&mutex);
    while (!WaitUntil(&changed, &mutex, deadline)) {
    }
  }
  TimedNotification never;
  EXPECT_FALSE(never.WaitFor(kShort));
  EXPECT_GE(Took(begin), 2 * kShort);
  EXPECT_LT(Took(begin), kLong);
}

INSTANTIATE_TEST_SUITE_P(Steps, TimedWaitTest, ::testing::Values(absl::Hours(-1), absl::Hours(1)),
                         [](const auto& info) {
                           return info.param > absl::ZeroDuration() ? "Forward" : "Back";
                         });

TEST(TimedWaitTest, AWaitEndsWhenItsConditionComesTrue) {
  absl::Mutex mutex;
  bool flag = false;
  const int64_t begin = SteadyNanoseconds();
  std::thread setter([&] {
    absl::MutexLock lock(&mutex);
    flag = true;
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(AwaitFor(&mutex, absl::Condition(&flag), 2 * kLong));
    EXPECT_TRUE(AwaitFor(&mutex, absl::Condition(&flag), absl::ZeroDuration()));
  }
  setter.join();
  EXPECT_LT(Took(begin), kLong);
}

TEST(TimedWaitTest, ASignalEndsAWaitOnAConditionVariable) {
  absl::Mutex mutex;
  absl::CondVar changed;
  bool flag = false;
  std::thread setter([&] {
    absl::MutexLock lock(&mutex);
    flag = true;
    changed.Signal();
  });
  {
    absl::MutexLock lock(&mutex);
    const absl::Time deadline = MonotonicNow() + kLong;
    while (!flag) ASSERT_FALSE(WaitUntil(&changed, &mutex, deadline));
  }
  setter.join();
}

TEST(TimedWaitTest, ANotificationEndsItsWaits) {
  TimedNotification notification;
  EXPECT_FALSE(notification.HasBeenNotified());
  EXPECT_FALSE(notification.WaitUntil(absl::InfinitePast()));
  std::thread notifier([&] { notification.Notify(); });
  EXPECT_TRUE(notification.WaitFor(kLong));
  notification.Wait();
  EXPECT_TRUE(notification.HasBeenNotified());
  notifier.join();
}

TEST(TimedWaitTest, AWaitWhoseMutexIsHeldAtTheDeadlineEndsLater) {
  absl::Mutex mutex;
  const bool never = false;
  bool held = false, release = false;
  std::thread holder;
  {
    absl::MutexLock lock(&mutex);
    holder = std::thread([&] {
      absl::MutexLock hold(&mutex);
      held = true;
      const int64_t begin = SteadyNanoseconds();
      while (Took(begin) < 2 * kShort) std::this_thread::yield();
      release = true;
    });
    EXPECT_FALSE(AwaitFor(&mutex, absl::Condition(&never), kShort));
    EXPECT_EQ(held, release);  // it does not return in the middle
  }
  holder.join();
}

TEST(TimedWaitTest, ManyShortWaitsAllEndAtTheirDeadlines) {
  constexpr int kThreads = 8, kWaits = 100;
  const int64_t begin = SteadyNanoseconds();
  std::vector<std::thread> threads;
  absl::Mutex shared;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t, &shared] {
      absl::Mutex own;
      absl::Mutex& mutex = t % 2 == 0 ? shared : own;
      const bool never = false;
      for (int i = 0; i < kWaits; ++i) {
        const absl::Time deadline = MonotonicNow() + absl::Microseconds((t * 37 + i * 101) % 1500);
        absl::MutexLock lock(&mutex);
        EXPECT_FALSE(AwaitUntil(&mutex, absl::Condition(&never), deadline));
        EXPECT_GE(MonotonicNow(), deadline);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(Took(begin), kLong);
}

#ifndef __SANITIZE_THREAD__  // it does not allow threads after a fork
TEST(TimedWaitTest, AForkedProcessCanWait) {
  absl::Mutex mutex;
  const bool never = false;
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(AwaitFor(&mutex, absl::Condition(&never), absl::Milliseconds(1)));
  const pid_t child = ::fork();
  if (child == 0) {
    absl::Mutex own;
    own.Lock();
    (void)AwaitFor(&own, absl::Condition(&never), absl::Milliseconds(1));
    ::_exit(7);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 7);
}
#endif

}  // namespace
}  // namespace tandem
