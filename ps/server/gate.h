#ifndef TANDEM_PS_SERVER_GATE_H_
#define TANDEM_PS_SERVER_GATE_H_

#include <functional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::ps {

// Lets any number of pushes through at once, or one operation that must see the tables between pushes (a
// checkpoint, a change of mode). Pushes that meet a closed gate are kept, not blocked. Thread-safe.
class Gate {
 public:
  // True: go on, then call Leave. False: closed.
  bool TryEnter() {
    absl::MutexLock lock(&mutex_);
    if (!closed_) ++inside_;
    return !closed_;
  }
  // The same, but when closed, `later` will be among what Open returns.
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
  // Closes, then waits for those inside; they never wait for anything but a thread. One closer at a time.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    mutex_.Await(absl::Condition(this, &Gate::IsEmpty));
  }
  // Returns what was kept, in order of arrival, for the caller to run.
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
