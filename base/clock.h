// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CLOCK_H_
#define TANDEM_BASE_CLOCK_H_

// The monotonic clock, and a clock that is passed to all code that waits or expires things, so that tests can
// control the time.
//
// Deadlines, leases and time-outs are moments of the monotonic clock. A promise to another machine that runs
// out while this one is suspended is a moment of the boot clock. The wall clock (absl::Now) is for what
// people read: log lines, file names, reports. It jumps when somebody or NTP sets it, and when a machine
// wakes from suspension.

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// Returns the time of the monotonic clock, which nobody can set and which stands still while the machine is
// suspended. Equals the wall clock at the first call of the process and then runs on by itself; so a time
// means nothing to another process. For that, see ToSteadyNanoseconds. Takes as long as absl::Now().
absl::Time MonotonicNow();

// Returns the time of the boot clock (CLOCK_BOOTTIME), which nobody can set and which runs on while the
// machine is suspended. A time means something only in comparison with others of this function in the same
// process. Takes as long as MonotonicNow().
absl::Time BootTimeNow();

// A moment as both clocks show it.
struct ClockReading {
  absl::Time monotonic;  // of MonotonicNow()
  absl::Time boot;       // of BootTimeNow()
};

// Converts between times of MonotonicNow() and nanoseconds of CLOCK_MONOTONIC, which all processes of a host
// share. Saturates: InfiniteFuture() becomes the largest number.
int64_t ToSteadyNanoseconds(absl::Time time);
absl::Time FromSteadyNanoseconds(int64_t ns);

// Source of time. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  // Waits on `mutex`, which the caller holds, until `condition` holds or the clock reaches `deadline`.
  // Returns true if the condition holds.
  virtual bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // Returns the machine's monotonic clock, MonotonicNow(). It is never destroyed.
  static Clock* Real();
};

// A clock that stands still until Advance() moves it. Thread-safe. A wait ends when Advance() reaches its
// deadline.
class SimulatedClock : public Clock {
 public:
  explicit SimulatedClock(absl::Time start = absl::UnixEpoch() + absl::Hours(1)) : now_(start) {}
  absl::Time Now() override;
  bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void Advance(absl::Duration by);

 private:
  absl::Mutex mutex_;
  absl::Time now_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem

#endif  // TANDEM_BASE_CLOCK_H_
