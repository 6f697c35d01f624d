// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_WATCHED_H_
#define TANDEM_TESTS_TESTING_WATCHED_H_

// A value that threads of a test change and wait for.

#include <functional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::testing {

// A value like a std::atomic that can be waited on with a deadline. Thread-safe.
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

  // Makes waiting threads evaluate their condition again, after something else that it depends on has
  // changed.
  void LookAgain() { absl::MutexLock lock(&mutex_); }
  // Waits until `holds` returns true for the value. Returns false if it does not within `timeout`.
  bool Await(const std::function<bool(T)>& holds, absl::Duration timeout = absl::Seconds(60)) const {
    absl::MutexLock lock(&mutex_);
    const auto now = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return holds(value_); };
    return mutex_.AwaitWithTimeout(absl::Condition(&now), timeout);
  }
  bool AwaitValue(T value, absl::Duration timeout = absl::Seconds(60)) const {
    return Await([value](T now) { return now == value; }, timeout);
  }

 private:
  mutable absl::Mutex mutex_;
  T value_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_WATCHED_H_
