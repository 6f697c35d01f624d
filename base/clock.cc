// SPDX-License-Identifier: Apache-2.0
#include "base/clock.h"

#include <time.h>

#include "absl/time/clock.h"
#include "base/status.h"
#include "base/ticks.h"
#include "base/timed_wait.h"

namespace tandem {
namespace {

// Returns the time that stands for CLOCK_MONOTONIC's zero. Both clocks are read together once.
absl::Time SteadyEpoch() {
  static const absl::Time epoch = absl::Now() - absl::Nanoseconds(SteadyNanoseconds());
  return epoch;
}

class RealClock : public Clock {
 public:
  absl::Time Now() override { return MonotonicNow(); }
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return tandem::AwaitUntil(mutex, condition, deadline);
  }
};

}  // namespace

absl::Time MonotonicNow() { return FromSteadyNanoseconds(SteadyNanoseconds()); }

absl::Time BootTimeNow() {
  timespec time = {};
  TANDEM_CHECK(::clock_gettime(CLOCK_BOOTTIME, &time) == 0);  // since Linux 2.6.39
  return SteadyEpoch() + absl::DurationFromTimespec(time);
}

int64_t ToSteadyNanoseconds(absl::Time time) { return absl::ToInt64Nanoseconds(time - SteadyEpoch()); }

absl::Time FromSteadyNanoseconds(int64_t ns) { return SteadyEpoch() + absl::Nanoseconds(ns); }

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
  while (!AwaitFor(mutex, condition, absl::Milliseconds(1))) {
    if (Now() >= deadline) return condition.Eval();
  }
  return true;
}

void SimulatedClock::Advance(absl::Duration by) {
  absl::MutexLock lock(&mutex_);
  now_ += by;
}

}  // namespace tandem
