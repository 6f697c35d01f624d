#ifndef TANDEM_BASE_CLOCK_H_
#define TANDEM_BASE_CLOCK_H_

// Time, passed in wherever code waits or expires things, so that tests decide what time it is.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() = 0;
  // Waits on `mutex` (held) until `condition` holds or the clock reaches `deadline`; true if the condition
  // holds.
  virtual bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) = 0;

  // The machine's clock; lives forever.
  static Clock* Real();
};

// A clock that stands still until told to move. Waits wake when Advance() passes their deadline.
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
