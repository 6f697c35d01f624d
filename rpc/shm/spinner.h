// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_SPINNER_H_
#define TANDEM_RPC_SHM_SPINNER_H_

// Decides how long a thread that waits for work spins before it sleeps. The time adapts to recent waits: it
// doubles after a short sleep and halves after a long one, between 2 us and 50 us.
//
// A spinning thread yields from time to time, because its peer may be waiting for the same processor.
// However, Linux counts a time slice as used up by a thread that yields to others. Such a thread then reacts
// milliseconds late to work that arrives: with two busy processors, one in a hundred pulls of 256 rows took 4
// ms. If a yield takes so long (0.5 ms) that other threads must have run, processors are scarce. For a tenth
// of a second the thread then spins for at most 10 us, does not yield, and sleeps, because the scheduler
// favours threads that have slept.

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/ipc/futex.h"
#include "base/ticks.h"

namespace tandem::rpc::shm {

// The spin policy of one waiting thread:
//
//   while (running) {
//     if (DoWork()) spinner.Worked();
//     else if (!spinner.Spin()) { Sleep(); spinner.Woke(); }
//   }
//
// Not thread-safe. Several threads may use one Spinner in turn if only one of them waits at a time.
class Spinner {
 public:
  using Yield = int (*)();

  // If the process may use only one processor, a spinning thread would keep all others from running. The
  // policy then never yields, and the 16th call of Spin returns false. `yield` is replaced in tests.
  explicit Spinner(Yield yield = sched_yield)
      : yield_(yield), most_ns_(ipc::UsableProcessors() > 1 ? kMostNs : 0), budget_ns_(most_ns_) {}

  // Tells the policy that the thread has found work. Ends the current wait, if there is one.
  void Worked() { begin_ns_ = 0; }

  // Tells the policy that the thread has slept, and adapts the spin time. If the wait, counted from its first
  // Spin, lasted less than 100 us, spinning longer would have avoided the sleep; else spinning was in vain.
  void Woke() {
    const bool soon = SteadyNanoseconds() - begin_ns_ < 2 * most_ns_;
    budget_ns_ = std::min(most_ns_, soon ? 2 * budget_ns_ + 1000 : std::max(kLeastNs, budget_ns_ / 2));
    begin_ns_ = 0;
  }

  // Tells the policy that the thread has found no work; the first call begins a wait. Pauses the
  // processor, sometimes yields, and returns true if the thread should check for work again. Returns false if
  // it should sleep.
  bool Spin() {
    if (begin_ns_ == 0) {
      begin_ns_ = SteadyNanoseconds();
      looks_ = 0;
    }
    if (++looks_ % kLooksBetween == 0) {
      const int64_t now = SteadyNanoseconds();
      const bool crowded = now < crowded_until_ns_;
      if (now - begin_ns_ >= (crowded ? std::min(budget_ns_, kCrowdedMostNs) : budget_ns_)) return false;
      if (!crowded && looks_ % (4 * kLooksBetween) == 0) {
        yield_();
        const int64_t back = SteadyNanoseconds();
        if (back - now > kLongYieldNs) crowded_until_ns_ = back + kCrowdedForNs;
      }
    }
    ipc::Pause();
    return true;
  }

 private:
  static constexpr int64_t kMostNs = 50'000;
  static constexpr int64_t kLeastNs = 2'000;
  static constexpr int kLooksBetween = 16;  // calls of Spin from one reading of the clock to the next
  static constexpr int64_t kLongYieldNs = 500'000;
  static constexpr int64_t kCrowdedForNs = 100'000'000;
  static constexpr int64_t kCrowdedMostNs = 10'000;

  const Yield yield_;
  const int64_t most_ns_;
  int64_t budget_ns_;
  int64_t begin_ns_ = 0;  // when the wait began; 0: not waiting
  int looks_ = 0;         // calls of Spin in this wait
  int64_t crowded_until_ns_ = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_SPINNER_H_
