// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_TIMED_WAIT_H_
#define TANDEM_BASE_TIMED_WAIT_H_

// Waits with a deadline on the monotonic clock. absl's own waits (AwaitWithTimeout, WaitWithDeadline,
// WaitForNotificationWithTimeout, ...) sleep until a moment of the wall clock, also those that take a
// duration: when the machine's clock is set back by an hour, they return an hour late.
//
// All functions are thread-safe. One thread of the process, started by the first wait that has to sleep,
// wakes the waits whose deadline has passed. A wait without a deadline (InfiniteFuture) needs no thread.

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

// Waits on `mutex`, which the caller holds, until `condition` holds or MonotonicNow() reaches `deadline`.
// Returns true if the condition holds.
bool AwaitUntil(absl::Mutex* mutex, const absl::Condition& condition, absl::Time deadline)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
// Does the same with a deadline `timeout` from now.
bool AwaitFor(absl::Mutex* mutex, const absl::Condition& condition, absl::Duration timeout)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

// Releases `mutex`, which the caller holds, sleeps until `condition_variable` is signalled or MonotonicNow()
// reaches `deadline`, and takes the mutex again. At the deadline every other waiter of the condition variable
// is woken too, so callers check in a loop what they wait for. Returns true if the deadline has passed.
bool WaitUntil(absl::CondVar* condition_variable, absl::Mutex* mutex, absl::Time deadline)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

// An absl::Notification whose timed waits use the monotonic clock.
class TimedNotification {
 public:
  TimedNotification() = default;
  TimedNotification(const TimedNotification&) = delete;
  TimedNotification& operator=(const TimedNotification&) = delete;
  // Waits for a Notify() that has begun to return.
  ~TimedNotification() { absl::MutexLock lock(&mutex_); }

  // Ends all waits, those of now and those to come.
  void Notify() {
    absl::MutexLock lock(&mutex_);
    notified_ = true;
  }
  bool HasBeenNotified() const {
    absl::MutexLock lock(&mutex_);
    return notified_;
  }
  void Wait() const {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&notified_));
  }
  // Waits at most until `deadline`. Returns true if Notify() has been called.
  bool WaitUntil(absl::Time deadline) const {
    absl::MutexLock lock(&mutex_);
    return AwaitUntil(&mutex_, absl::Condition(&notified_), deadline);
  }
  bool WaitFor(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return AwaitFor(&mutex_, absl::Condition(&notified_), timeout);
  }

 private:
  mutable absl::Mutex mutex_;
  bool notified_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem

#endif  // TANDEM_BASE_TIMED_WAIT_H_
