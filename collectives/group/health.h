// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_HEALTH_H_
#define TANDEM_COLLECTIVES_GROUP_HEALTH_H_

// Health tells whether a group works, and stores the first error that broke it.

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tandem::collectives {

// Thread-safe.
class Health {
 public:
  bool broken() const { return broken_.load(std::memory_order_acquire); }

  // Returns the first error; OK while the group works.
  absl::Status error() const {
    if (!broken()) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    return error_;
  }

  // Breaks the group; returns false if it was broken already, in which case the first error stays.
  bool Break(const absl::Status& error) {
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) return false;
    error_ = error;
    broken_.store(true, std::memory_order_release);
    return true;
  }

 private:
  mutable absl::Mutex mutex_;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> broken_{false};
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_HEALTH_H_
