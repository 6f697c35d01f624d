#ifndef TANDEM_RPC_SHM_CONNECTION_SPINNER_H_
#define TANDEM_RPC_SHM_CONNECTION_SPINNER_H_

// How long a thread looks for work before it sleeps: as long as looking has paid of late, at most 50 us.

#include <sched.h>

#include <algorithm>
#include <cstdint>

#include "base/ipc/futex.h"
#include "base/ticks.h"

namespace tandem::rpc::shm {

// Used by one thread.
class Spinner {
 public:
  // Nobody who spins on the only processor lets another work.
  Spinner() : most_ns_(ipc::UsableProcessors() > 1 ? kMostNs : 0), budget_ns_(most_ns_) {}

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
      if (SteadyNanoseconds() - begin_ns_ >= budget_ns_) return false;
      if (looks_ % (4 * kLooksBetween) == 0) sched_yield();  // the peer may be waiting for this processor
    }
    ipc::Pause();
    return true;
  }

 private:
  static constexpr int64_t kMostNs = 50'000;
  static constexpr int64_t kLeastNs = 2'000;
  static constexpr int kLooksBetween = 16;

  const int64_t most_ns_;
  int64_t budget_ns_;
  int64_t begin_ns_ = 0;  // of the wait; 0: none
  int looks_ = 0;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_CONNECTION_SPINNER_H_
