// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include "absl/time/clock.h"

namespace tandem {
namespace {
class RealClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return mutex->AwaitWithDeadline(condition, deadline);
  }
};
}  // namespace

Clock* Clock::Real() {
  static RealClock* clock = new RealClock;
  return clock;
}

absl::Time SimulatedClock::Now() {
  absl::MutexLock lock(&mutex_);
  return now_;
}

bool SimulatedClock::AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) {
  // The waiter sleeps on its own mutex and cannot watch now_ as well, so it checks every millisecond of real
  // time.
  while (!mutex->AwaitWithTimeout(condition, absl::Milliseconds(1))) {
    if (Now() >= deadline) return condition.Eval();
  }
  return true;
}

void SimulatedClock::Advance(absl::Duration by) {
  absl::MutexLock lock(&mutex_);
  now_ += by;
}

}  // namespace tandem
