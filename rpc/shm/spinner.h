#ifndef TANDEM_RPC_SHM_SPINNER_H_
#define TANDEM_RPC_SHM_SPINNER_H_

// How long a thread looks for work before it sleeps: as long as looking has paid of late, at most 50 us.
//
// While it looks it yields now and then, since its peer may be waiting for this very processor. But Linux
// counts a slice as used up by who yields to others, so that a thread comes milliseconds late to work that
// arrives then: with two processors full, one in a hundred pulls of 256 rows took 4 ms. Where a yield takes
// so long that others must have run, processors are scarce; for a tenth of a second the thread then looks but
// briefly, does not yield, and sleeps: whoever slept is served first.

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/ipc/futex.h"
#include "base/ticks.h"

namespace tandem::rpc::shm {

// Used by one thread.
class Spinner {
 public:
  using Yield = int (*)();

  // Nobody who spins on the only processor lets another work. `yield` is for tests.
  explicit Spinner(Yield yield = sched_yield)
      : yield_(yield), most_ns_(ipc::UsableProcessors() > 1 ? kMostNs : 0), budget_ns_(most_ns_) {}

  // There was work: a wait, if there was one, is over.
  void Worked() { begin_ns_ = 0; }

  // After a sleep. A short one would have been worth a longer look; a long one, a shorter.
  void Woke() {
    const bool soon = SteadyNanoseconds() - begin_ns_ < 2 * most_ns_;
    budget_ns_ = std::min(most_ns_, soon ? 2 * budget_ns_ + 1000 : std::max(kLeastNs, budget_ns_ / 2));
    begin_ns_ = 0;
  }

  // There was none: pauses a moment, and says whether to look again. False: sleep.
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
  static constexpr int kLooksBetween = 16;
  static constexpr int64_t kLongYieldNs = 500'000;
  static constexpr int64_t kCrowdedForNs = 100'000'000;
  static constexpr int64_t kCrowdedMostNs = 10'000;

  const Yield yield_;
  const int64_t most_ns_;
  int64_t budget_ns_;
  int64_t begin_ns_ = 0;  // of the wait; 0: none
  int looks_ = 0;
  int64_t crowded_until_ns_ = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_SPINNER_H_
