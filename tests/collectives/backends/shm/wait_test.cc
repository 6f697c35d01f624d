// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/wait.h"

#include <atomic>
#include <thread>

#include "base/long_wait.h"
#include "gtest/gtest.h"

namespace tandem::collectives::shm {
namespace {

constexpr auto kStays = [] { return false; };

TEST(WaitTest, ASleeperIsWokenByTheWriter) {
  const SpinPolicy impatient(0, 0, 0);
  std::atomic<uint32_t> failure{0};
  std::atomic<uint64_t> word{0};
  WakeupWord wakeup;
  for (uint64_t i = 1; i <= 200; ++i) {
    std::thread writer([&] { Publish(word, i, wakeup, /*fenced=*/true); });
    Waiter waiter(impatient, failure, absl::Seconds(60));
    EXPECT_EQ(waiter.Await(
                  wakeup, [&] { return word.load(std::memory_order_acquire) == i; }, kStays),
              Outcome::kReady);
    writer.join();
  }
  EXPECT_EQ(wakeup.sleepers.load(), 0u);
}

TEST(WaitTest, OutcomesAreDistinguishedAndAReadyWordCounts) {
  for (const SpinPolicy& spin_policy : {SpinPolicy(10, 0, 0), SpinPolicy(0, 3, 2)}) {
    std::atomic<uint32_t> failure{0};
    WakeupWord wakeup;
    const auto never = [] { return false; };
    const auto always = [] { return true; };
    EXPECT_EQ(Waiter(spin_policy, failure, absl::Milliseconds(5)).Await(wakeup, never, kStays),
              Outcome::kTimedOut);
    EXPECT_EQ(Waiter(spin_policy, failure, absl::InfiniteDuration()).Await(wakeup, never, always),
              Outcome::kLeft);
    failure = 1;
    EXPECT_EQ(Waiter(spin_policy, failure, absl::Seconds(60)).Await(wakeup, never, kStays), Outcome::kFailed);
    EXPECT_EQ(Waiter(spin_policy, failure, absl::ZeroDuration()).Await(wakeup, always, always),
              Outcome::kReady);
  }
}

TEST(WaitTest, ALongWaitCallsTheHookOfItsThreadWhichMayEndIt) {
  const SpinPolicy impatient(0, 0, 0);
  std::atomic<uint32_t> failure{0};
  WakeupWord wakeup;
  const auto never = [] { return false; };
  int outer_calls = 0, calls = 0;
  const auto count = [&] { ++outer_calls; };
  const auto fail = [&] {
    ++calls;
    failure = 1;
  };
  const ScopedLongWaitHook outer(count);
  {
    const ScopedLongWaitHook inner(fail);
    EXPECT_EQ(Waiter(impatient, failure, absl::Milliseconds(1)).Await(wakeup, never, kStays),
              Outcome::kTimedOut);
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(Waiter(impatient, failure, absl::Seconds(60)).Await(wakeup, never, kStays), Outcome::kFailed);
    EXPECT_EQ(calls, 1);
  }
  EXPECT_EQ(outer_calls, 0);
  CallLongWaitHook();
  EXPECT_EQ(outer_calls, 1);
}

TEST(WaitTest, RanksThatShareProcessorsDoNotSpin) {
  const auto looks = [](const SpinPolicy& p) { return p.spins + p.yields * p.spins_between; };
  EXPECT_GT(looks(SpinPolicyFor(2, 2)), 50 * looks(SpinPolicyFor(4, 2)));
  EXPECT_GT(SpinPolicyFor(4, 2).yields, 0);
  EXPECT_GE(UsableProcessors(), 1);
}

}  // namespace
}  // namespace tandem::collectives::shm
