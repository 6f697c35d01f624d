#ifndef TANDEM_WORKER_TRAINER_LAP_TIMER_H_
#define TANDEM_WORKER_TRAINER_LAP_TIMER_H_

#include <cstdint>

#include "absl/time/clock.h"

namespace tandem::worker {

// Splits a thread's time among totals, in seconds: each call charges what passed since the one before.
class LapTimer {
 public:
  void AddTo(double* total) {
    const int64_t now = absl::GetCurrentTimeNanos();
    *total += static_cast<double>(now - last_) * 1e-9;
    last_ = now;
  }

 private:
  int64_t last_ = absl::GetCurrentTimeNanos();
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_LAP_TIMER_H_
