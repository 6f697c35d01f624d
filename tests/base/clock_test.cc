// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <cstdint>
#include <limits>
#include <thread>

#include "base/ticks.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(RealClockTest, ShowsTheMonotonicClock) {
  const int64_t before = SteadyNanoseconds();
  const absl::Time now = Clock::Real()->Now();
  EXPECT_LE(before, ToSteadyNanoseconds(now));
  EXPECT_LE(ToSteadyNanoseconds(now), SteadyNanoseconds());
  EXPECT_EQ(FromSteadyNanoseconds(ToSteadyNanoseconds(now)), now);
  EXPECT_EQ(ToSteadyNanoseconds(absl::InfiniteFuture()), std::numeric_limits<int64_t>::max());
}

TEST(BootTimeTest, RunsOnByItself) {
  const absl::Time before = BootTimeNow();
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(5);
  while (MonotonicNow() < deadline) std::this_thread::yield();
  EXPECT_GE(BootTimeNow() - before, absl::Milliseconds(4));
  // It is ahead of the monotonic clock by the time for which the machine was suspended.
  EXPECT_GE(BootTimeNow(), MonotonicNow() - absl::Milliseconds(1));
}

TEST(RealClockTest, AwaitEndsAtTheDeadlineOrWhenTheConditionHolds) {
  absl::Mutex mutex;
  bool flag = false;
  absl::MutexLock lock(&mutex);
  const absl::Time deadline = MonotonicNow() + absl::Milliseconds(20);
  EXPECT_FALSE(Clock::Real()->AwaitUntil(&mutex, absl::Condition(&flag), deadline));
  EXPECT_GE(MonotonicNow(), deadline);
  flag = true;
  EXPECT_TRUE(Clock::Real()->AwaitUntil(&mutex, absl::Condition(&flag), absl::InfinitePast()));
}

TEST(SimulatedClockTest, StandsStillUntilAdvanced) {
  const absl::Time start = absl::FromUnixSeconds(1000);
  SimulatedClock clock(start);
  EXPECT_EQ(clock.Now(), start);
  EXPECT_EQ(clock.Now(), start);
  clock.Advance(absl::Hours(3));
  EXPECT_EQ(clock.Now(), start + absl::Hours(3));
}

TEST(SimulatedClockTest, AWaitEndsWhenAdvancePassesItsDeadline) {
  SimulatedClock clock;
  absl::Mutex mutex;
  bool never = false;
  bool held = true;
  const absl::Time deadline = clock.Now() + absl::Hours(1);
  std::thread waiter([&] {
    absl::MutexLock lock(&mutex);
    held = clock.AwaitUntil(&mutex, absl::Condition(&never), deadline);
  });
  clock.Advance(absl::Minutes(59));
  clock.Advance(absl::Minutes(1));
  waiter.join();
  EXPECT_FALSE(held);
  EXPECT_GE(clock.Now(), deadline);
}

TEST(SimulatedClockTest, AWaitEndsWhenItsConditionComesTrue) {
  SimulatedClock clock;
  absl::Mutex mutex;
  bool flag = false;
  bool held = false;
  std::thread waiter([&] {
    absl::MutexLock lock(&mutex);
    held = clock.AwaitUntil(&mutex, absl::Condition(&flag), absl::InfiniteFuture());
  });
  {
    absl::MutexLock lock(&mutex);
    flag = true;
  }
  waiter.join();
  EXPECT_TRUE(held);
}

}  // namespace
}  // namespace tandem
