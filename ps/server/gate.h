// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_GATE_H_
#define TANDEM_PS_SERVER_GATE_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Admits any number of pushes at a time, or one operation that must see the tables between pushes (a
// checkpoint, a change of mode). Pushes that meet the closed gate are deferred, not blocked. Thread-safe.
class Gate {
 public:
  // Returns true if the gate is open. The caller then runs its push and calls Leave.
  bool TryEnter() {
    absl::MutexLock lock(&mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  // Returns true if the gate is open, as TryEnter does. Otherwise stores `later` for Open.
  bool EnterOrDefer(std::function<void()> later) {
    absl::MutexLock lock(&mutex_);
    if (closed_) {
      deferred_.push_back(std::move(later));
    } else {
      ++inside_;
    }
    return !closed_;
  }
  void Leave() {
    absl::MutexLock lock(&mutex_);
    --inside_;
  }
  // Closes the gate and blocks until the pushes inside have left. They wait for nothing but a thread. One
  // thread at a time may close the gate; RequestHandler::between_pushes_mutex_ sees to that.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    mutex_.Await(absl::Condition(this, &Gate::IsEmpty));
  }
  // Opens the gate and returns the stored functions in order of arrival, for the caller to run.
  std::vector<std::function<void()>> Open() {
    absl::MutexLock lock(&mutex_);
    closed_ = false;
    return std::exchange(deferred_, {});
  }

 private:
  bool IsEmpty() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return inside_ == 0; }

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  int inside_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::function<void()>> deferred_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_GATE_H_
