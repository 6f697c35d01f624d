// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_LAP_TIMER_H_
#define TANDEM_WORKER_STEP_LAP_TIMER_H_

#include <cstdint>

#include "base/ticks.h"
#include "base/trace/trace.h"

namespace tandem::worker {

// Splits a thread's time among totals (in seconds) and trace events: each call charges the time since the
// previous call.
class LapTimer {
 public:
  void AddTo(double* total, const trace::Kind& kind, int64_t a = 0, int64_t b = 0) {
    AddTo(total);
    trace_.EndWith(kind, a, b);
  }
  void AddTo(double* total) {
    const int64_t now = SteadyNanoseconds();
    *total += static_cast<double>(now - last_) * 1e-9;
    last_ = now;
  }

 private:
  trace::Laps trace_;
  int64_t last_ = SteadyNanoseconds();
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_LAP_TIMER_H_
