#ifndef TANDEM_COLLECTIVES_GROUP_HEALTH_H_
#define TANDEM_COLLECTIVES_GROUP_HEALTH_H_

// Whether a group works, and the first error that broke it.

#include <atomic>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace tandem::collectives {

// Thread-safe.
class Health {
 public:
  bool broken() const { return broken_.load(std::memory_order_acquire); }

  // The first error; OK while it works.
  absl::Status error() const {
    if (!broken()) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    return error_;
  }

  // False if it was broken already: the first error stays.
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
