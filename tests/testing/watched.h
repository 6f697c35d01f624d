#ifndef TANDEM_TESTS_TESTING_WATCHED_H_
#define TANDEM_TESTS_TESTING_WATCHED_H_

// A value that threads of a test change and wait for.

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::testing {

// Thread-safe, as a std::atomic that can be waited on with a deadline.
template <typename T>
class Watched {
 public:
  explicit Watched(T value = T()) : value_(value) {}

  T load() const {
    absl::MutexLock lock(&mutex_);
    return value_;
  }
  operator T() const { return load(); }
  Watched& operator=(T value) {
    absl::MutexLock lock(&mutex_);
    value_ = value;
    return *this;
  }
  T operator++() {
    absl::MutexLock lock(&mutex_);
    return ++value_;
  }
  T operator--() {
    absl::MutexLock lock(&mutex_);
    return --value_;
  }

  // Those who wait look again: what `holds` depends on beside the value has changed.
  void LookAgain() { absl::MutexLock lock(&mutex_); }
  // Until `holds`; false when it does not within `patience`.
  bool Await(const std::function<bool(T)>& holds, absl::Duration patience = absl::Seconds(60)) const {
    absl::MutexLock lock(&mutex_);
    const auto now = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return holds(value_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&now), patience);
  }
  bool AwaitValue(T value, absl::Duration patience = absl::Seconds(60)) const {
    return Await([value](T now) { return now == value; }, patience);
  }

 private:
  mutable absl::Mutex mutex_;
  T value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_WATCHED_H_
