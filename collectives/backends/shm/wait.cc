// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/wait.h"

#include <sched.h>

#include <algorithm>
#include <limits>

#include "base/long_wait.h"
#include "base/ticks.h"

namespace tandem::collectives::shm {
namespace {

constexpr int64_t kMillisecond = 1'000'000;
// The first sleep is short: the wakeup that was meant for it may have been missed (see Wake).
constexpr int64_t kFirstSleepNs = kMillisecond;
constexpr int64_t kLongestSleepNs = 100 * kMillisecond;
// A yield that took this long went to a CPU-bound process: sleeping is better than yielding again.
constexpr int64_t kLongYieldNs = kMillisecond / 2;

}  // namespace

int64_t DeadlineNs(absl::Duration timeout) {
  const int64_t now = SteadyNanoseconds();
  const int64_t timeout_ns = std::max<int64_t>(0, absl::ToInt64Nanoseconds(timeout));
  return timeout_ns > std::numeric_limits<int64_t>::max() - now ? std::numeric_limits<int64_t>::max()
                                                                : std::max<int64_t>(1, now + timeout_ns);
}

void WakeAlways(WakeupWord& wakeup) {
  wakeup.wakeups.fetch_add(1, std::memory_order_release);
  ipc::FutexWake(&wakeup.wakeups);
}

SpinPolicy SpinPolicyFor(int ranks, int processors) {
  if (ranks <= processors) return {/*spins=*/500, /*yields=*/40, /*spins_between=*/50};
  return {/*spins=*/20, /*yields=*/50, /*spins_between=*/0};
}

bool Waiter::Ended(absl::FunctionRef<bool()> ready, absl::FunctionRef<bool()> left, Outcome* outcome) {
  if (ready()) {
    *outcome = Outcome::kReady;
    return true;
  }
  const bool failed = failure_.load(std::memory_order_acquire) != 0;
  const bool gone = left();
  if (!failed && !gone) return false;
  // Everything that was published before the failure, or before leaving, is visible by now.
  *outcome = ready() ? Outcome::kReady : failed ? Outcome::kFailed : Outcome::kLeft;
  return true;
}

Outcome Waiter::AwaitLong(WakeupWord& wakeup, absl::FunctionRef<bool()> ready,
                          absl::FunctionRef<bool()> left) {
  int64_t now = SteadyNanoseconds();
  if (deadline_ns_ == 0) deadline_ns_ = DeadlineNs(timeout_);
  Outcome outcome;
  const bool yield_backoff = spin_policy_.yield_backoff.load(std::memory_order_relaxed) > 0;
  if (yield_backoff) spin_policy_.yield_backoff.fetch_sub(1, std::memory_order_relaxed);
  for (int i = 0; i < spin_policy_.yields; ++i) {
    if (!yield_backoff) sched_yield();
    const bool ended = Ended(ready, left, &outcome);
    if (!yield_backoff) {
      const int64_t before = now;
      now = SteadyNanoseconds();
      const int next_yield_backoff = spin_policy_.next_yield_backoff.load(std::memory_order_relaxed);
      if (now - before > kLongYieldNs) {
        spin_policy_.yield_backoff.store(next_yield_backoff, std::memory_order_relaxed);
        spin_policy_.next_yield_backoff.store(std::min(2 * next_yield_backoff, SpinPolicy::kMaxYieldBackoff),
                                              std::memory_order_relaxed);
      } else if (ended && next_yield_backoff != SpinPolicy::kMinYieldBackoff) {
        spin_policy_.next_yield_backoff.store(SpinPolicy::kMinYieldBackoff, std::memory_order_relaxed);
      }
    }
    if (ended) {
      if (i == 0 && !yield_backoff) SpinLess();
      return outcome;
    }
    if (!yield_backoff && spin_policy_.yield_backoff.load(std::memory_order_relaxed) > 0) break;
    for (int j = 0; j < spin_policy_.spins_between; ++j) {
      Pause();
      if (ready()) return Outcome::kReady;
    }
  }
  // Registered once for all its sleeps: a wakeup can be missed only at the beginning.
  wakeup.sleepers.fetch_add(1, std::memory_order_seq_cst);
  for (int64_t sleep_ns = kFirstSleepNs;; sleep_ns = std::min(kLongestSleepNs, 2 * sleep_ns)) {
    const uint32_t wakeups = wakeup.wakeups.load(std::memory_order_acquire);
    if (Ended(ready, left, &outcome)) break;
    now = SteadyNanoseconds();
    if (now >= deadline_ns_) {
      outcome = Outcome::kTimedOut;
      break;
    }
    ipc::FutexWait(&wakeup.wakeups, wakeups, std::min(sleep_ns, deadline_ns_ - now));
    if (sleep_ns == kLongestSleepNs) CallLongWaitHook();
  }
  wakeup.sleepers.fetch_sub(1, std::memory_order_seq_cst);
  return outcome;
}

}  // namespace tandem::collectives::shm
