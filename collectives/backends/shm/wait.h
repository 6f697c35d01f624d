#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_WAIT_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_WAIT_H_

// Waiting for a word that another process writes: spin a short while, then give the processor away, then
// sleep in the kernel. The writer makes a system call only when somebody sleeps.

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

// Lies in shared memory, one for each rank: on it sleep those who wait for something that this rank publishes
// (or, for the mailbox of point to point, this rank itself). All zero is a valid bell.
struct alignas(kLine) WakeupWord {
  std::atomic<uint32_t> rings{0};  // the futex
  std::atomic<uint32_t> sleepers{0};
};

// Wakes all sleepers, whether or not some are known.
void WakeAlways(WakeupWord& wakeup);

// To be called after publishing with a release store. The load may overtake that store, and so miss somebody
// who is just falling asleep: no fence is paid for on every message, the sleeper looks again after a
// millisecond.
inline void Ring(WakeupWord& wakeup) {
  if (wakeup.sleepers.load(std::memory_order_relaxed) != 0) WakeAlways(wakeup);
}

// Stores what others wait for, and wakes who sleeps on `bell`. `fenced` where sleepers are usual (ranks share
// processors): then none is missed.
inline void Publish(std::atomic<uint64_t>& word, uint64_t value, WakeupWord& wakeup, bool fenced) {
  if (fenced) {
    word.exchange(value, std::memory_order_seq_cst);
  } else {
    word.store(value, std::memory_order_release);
  }
  Ring(wakeup);
}

// SteadyNanoseconds() plus `timeout`, at least 1 and at most the largest number.
int64_t DeadlineNs(absl::Duration timeout);

// How long a wait holds its processor before it sleeps, and what it has learned. Copies learn apart.
struct SpinPolicy {
  SpinPolicy(int spins, int yields, int spins_between)
      : spins(spins), yields(yields), spins_between(spins_between), spin_budget(spins) {}
  SpinPolicy(const SpinPolicy& other) : SpinPolicy(other.spins, other.yields, other.spins_between) {}

  // Whether waits go on to sleep as a matter of course.
  bool sleeps_often() const { return spins_between == 0; }

  const int spins;          // looks, with a pause between, at first, and at most
  const int yields;         // then sched_yield, so many times,
  const int spins_between;  // with so many looks after each
  // Long waits to come that do not yield: the last yield went to a stranger who computes, and cost his whole
  // time slice, where a sleeper comes back at once. Each time for twice as many, until a yield has helped.
  mutable std::atomic<int> yield_backoff{0};
  mutable std::atomic<int> next_yield_backoff{kMinYieldBackoff};
  static constexpr int kMinYieldBackoff = 64, kMaxYieldBackoff = 1024;
  // Of `spins`, what has paid of late. Where the first yield brings what no spinning did, both ranks have
  // been put on one processor (beside a busy neighbour they often are), and whoever spins holds up the other:
  // half as much next time. A spin that was worth it doubles it again.
  mutable std::atomic<int> spin_budget;
  static constexpr int kFewestSpins = 64;
};

// For `ranks` ranks on one host of which this process may use `processors`. Where every rank can have a
// processor, waits go on for some 100 us (waking a sleeper takes about as long), with yields between, as two
// ranks may have been put on one processor. Where ranks must share processors, whoever waits holds up the one
// it waits for, and yields at once.
SpinPolicy SpinPolicyFor(int ranks, int processors);

enum class Outcome {
  kReady,
  kFailed,    // the group's failure word is set
  kLeft,      // the one who is waited for has left
  kTimedOut,  // the deadline is over
};

// The waits of one operation: they share its deadline, which begins when waiting first gets long, so that the
// fast path reads no clock. Used by one thread.
class Waiter {
 public:
  // `failure`: nonzero once the group has failed. Both references must outlive the waiter.
  Waiter(const SpinPolicy& spin_policy, const std::atomic<uint32_t>& failure, absl::Duration timeout)
      : spin_policy_(spin_policy), failure_(failure), timeout_(timeout) {}

  // Until ready() (which must load with acquire order). What is ready counts, even if the group has failed or
  // the writer has left or the time is over. `left`: whether the writer will never write again; asked now and
  // then.
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
      spin_policy_.spin_budget.store(std::max(spins / 2, SpinPolicy::kFewestSpins), std::memory_order_relaxed);
    }
  }
  Outcome AwaitLong(WakeupWord& wakeup, absl::FunctionRef<bool()> ready, absl::FunctionRef<bool()> left);
  // Nothing while the wait should go on: else the outcome is in *outcome.
  bool Ended(absl::FunctionRef<bool()> ready, absl::FunctionRef<bool()> left, Outcome* outcome);

  const SpinPolicy& spin_policy_;
  const std::atomic<uint32_t>& failure_;
  const absl::Duration timeout_;
  int64_t deadline_ns_ = 0;  // of the steady clock; 0: not begun
};

}  // namespace tandem::collectives::shm

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_WAIT_H_
