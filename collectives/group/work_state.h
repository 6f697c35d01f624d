// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_WORK_STATE_H_
#define TANDEM_COLLECTIVES_GROUP_WORK_STATE_H_

// WorkState is the state that the copies of a Work share.

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "collectives/work.h"

namespace tandem::collectives::internal {

// Thread-safe. The code that runs the operation calls Complete once; Work calls the functions that have no
// comment here, which work.h documents.
class WorkState {
 public:
  // Wakes waiting threads, then runs the callbacks in this thread, in the order in which they were
  // registered.
  void Complete(absl::Status status, int source_rank = -1);
  // Sets the work on a device for OrderStream. Must be called before the Work is handed out.
  void SetDeviceWork(std::shared_ptr<DeviceWork> device) { device_ = std::move(device); }

  absl::Status Wait(absl::Duration timeout);
  bool IsCompleted();
  absl::Status status();
  int source_rank();
  void Then(std::function<void(const absl::Status&)> callback);
  absl::Status OrderStream(void* stream);

 private:
  absl::Mutex mutex_;
  bool completed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  int source_rank_ ABSL_GUARDED_BY(mutex_) = -1;
  std::vector<std::function<void(const absl::Status&)>> callbacks_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<DeviceWork> device_;
};

}  // namespace tandem::collectives::internal

#endif  // TANDEM_COLLECTIVES_GROUP_WORK_STATE_H_
