// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_WAIT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_WAIT_H_

// Waits for a word that another process writes: first spins, then yields the processor, then sleeps in the
// kernel. The writer makes a system call only if a thread sleeps.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "base/ipc/futex.h"

namespace tandem::collectives::shm {

using ipc::kLine;
using ipc::Pause;
using ipc::UsableProcessors;

// The futex on which threads sleep that wait for something published by one rank. It lies in shared memory,
// one for each rank. On the mailbox of point to point, the rank itself sleeps. All zero is a valid state.
struct alignas(kLine) WakeupWord {
  std::atomic<uint32_t> wakeups{0};  // the futex
  std::atomic<uint32_t> sleepers{0};
};

// Wakes all sleepers, even if none are registered.
void WakeAlways(WakeupWord& wakeup);

// Wakes the sleepers after a release store has published something. The load may overtake that store and so
// miss a thread that is just falling asleep. A fence on every message would cost more: instead the sleeper
// checks again after a millisecond.
inline void Wake(WakeupWord& wakeup) {
  if (wakeup.sleepers.load(std::memory_order_relaxed) != 0) WakeAlways(wakeup);
}

// Stores a word for which others wait, and wakes the threads that sleep on `wakeup`. `fenced`, for ranks that
// share processors and therefore sleep often, guarantees that no sleeper is missed.
inline void Publish(std::atomic<uint64_t>& word, uint64_t value, WakeupWord& wakeup, bool fenced) {
  if (fenced) {
    word.exchange(value, std::memory_order_seq_cst);
  } else {
    word.store(value, std::memory_order_release);
  }
  Wake(wakeup);
}

// Returns SteadyNanoseconds() plus `timeout`, clamped to [1, largest number].
int64_t DeadlineNs(absl::Duration timeout);

// How long a wait occupies its processor before it sleeps, with state that adapts to earlier waits. Copies
// adapt separately.
struct SpinPolicy {
  SpinPolicy(int spins, int yields, int spins_between)
      : spins(spins), yields(yields), spins_between(spins_between), spin_budget(spins) {}
  SpinPolicy(const SpinPolicy& other) : SpinPolicy(other.spins, other.yields, other.spins_between) {}

  // Returns true if waits usually end up sleeping.
  bool sleeps_often() const { return spins_between == 0; }

  const int spins;          // number of checks, with a pause between them, at first; the upper limit
  const int yields;         // number of sched_yield calls after that
  const int spins_between;  // number of checks after each yield
  // Number of upcoming long waits that skip sched_yield(). Yielding to a CPU-bound process costs a full time
  // slice, where a sleeper is woken at once. Each bad yield doubles the next backoff, until a yield helps.
  mutable std::atomic<int> yield_backoff{0};
  mutable std::atomic<int> next_yield_backoff{kMinYieldBackoff};
  static constexpr int kMinYieldBackoff = 64, kMaxYieldBackoff = 1024;
  // The part of `spins` that has paid off recently. If the first yield succeeds where spinning did not, both
  // ranks share one processor (as happens next to a CPU-bound process), and spinning delays the other rank:
  // the budget is halved. A spin that succeeds doubles it again.
  mutable std::atomic<int> spin_budget;
  static constexpr int kFewestSpins = 64;
};

// Returns the policy for `ranks` ranks on a host of which this process may use `processors`. If every rank
// can have a processor, waits spin for about 100 us (waking a sleeper takes about as long), with yields
// between, because two ranks may have been put on one processor. If ranks must share processors, a waiting
// rank delays the rank for which it waits, so it yields at once.
SpinPolicy SpinPolicyFor(int ranks, int processors);

enum class Outcome {
  kReady,
  kFailed,    // the group's failure word is set
  kLeft,      // the awaited rank has left
  kTimedOut,  // the deadline is over
};

// The waits of one operation. They share its deadline, which starts when a wait first becomes long, so that
// the fast path reads no clock. Used by one thread.
class Waiter {
 public:
  // `failure`: nonzero once the group has failed. Both references must outlive the waiter.
  Waiter(const SpinPolicy& spin_policy, const std::atomic<uint32_t>& failure, absl::Duration timeout)
      : spin_policy_(spin_policy), failure_(failure), timeout_(timeout) {}

  // Waits until ready() returns true; ready() must load with acquire order. A ready word counts even if the
  // group has failed, the writer has left or the time is over. left() returns true if the writer will never
  // write again; it is called from time to time. Calls this thread's long-wait hook (base/long_wait.h).
  template <typename Ready, typename Left>
  Outcome Await(WakeupWord& wakeup, Ready ready, Left left) {
    if (ready()) return Outcome::kReady;
    const int spins = spin_policy_.spin_budget.load(std::memory_order_relaxed);
    for (int i = 0; i < spins; ++i) {
      Pause();
      if (ready()) {
        if (spins < spin_policy_.spins) SpinMore(spins);
        return Outcome::kReady;
      }
    }
    return AwaitLong(wakeup, ready, left);
  }

 private:
  void SpinMore(int spins) {
    spin_policy_.spin_budget.store(std::min(2 * spins, spin_policy_.spins), std::memory_order_relaxed);
  }
  void SpinLess() {
    const int spins = spin_policy_.spin_budget.load(std::memory_order_relaxed);
    if (spins > SpinPolicy::kFewestSpins) {
      spin_policy_.spin_budget.store(std::max(spins / 2, SpinPolicy::kFewestSpins),
                                     std::memory_order_relaxed);
    }
  }
  Outcome AwaitLong(WakeupWord& wakeup, absl::FunctionRef<bool()> ready, absl::FunctionRef<bool()> left);
  // Returns false if the wait should continue; otherwise *outcome is the outcome.
  bool Ended(absl::FunctionRef<bool()> ready, absl::FunctionRef<bool()> left, Outcome* outcome);

  const SpinPolicy& spin_policy_;
  const std::atomic<uint32_t>& failure_;
  const absl::Duration timeout_;
  int64_t deadline_ns_ = 0;  // of the steady clock; 0: not begun
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_WAIT_H_
