// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_WORK_H_
#define TANDEM_COLLECTIVES_WORK_H_

// Work is a running or finished operation of a process group; torch.distributed's Work.

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "collectives/backend.h"

namespace tandem::collectives {

namespace internal {
class WorkState;  // collectives/group/work_state.h
}

// A handle to an operation; copies refer to the same operation. Thread-safe. Dropping the handle does not
// cancel the operation. The operation's buffers must stay valid until it is completed; the group's destructor
// completes all operations.
class [[nodiscard]] Work {
 public:
  // Constructs a finished Work.
  explicit Work(absl::Status status = absl::OkStatus(), int source_rank = -1)
      : status_(std::move(status)), source_rank_(source_rank) {}
  explicit Work(std::shared_ptr<internal::WorkState> state) : state_(std::move(state)) {}

  // Blocks until the operation is completed, at most `timeout`, and returns its status. Returns
  // DeadlineExceeded if it still runs after `timeout`; the operation continues and its own timeout bounds it.
  // For GPU operations prefer OrderStream, which does not block this thread.
  absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration()) const;
  bool IsCompleted() const;
  // Returns the status of a completed operation; Unavailable while it runs.
  absl::Status status() const;
  // Runs `callback` once the operation is completed: immediately, in this thread, if it already is, otherwise
  // in the thread that completes it. `callback` must not block and must not wait for another operation of the
  // same group.
  void Then(std::function<void(const absl::Status&)> callback) const;
  // Returns the sender's rank of a completed recv.
  int source_rank() const;
  // Does what DeviceWork::OrderStream does for a GPU operation. Waits for a CPU operation and returns its
  // status.
  absl::Status OrderStream(void* stream) const;

 private:
  std::shared_ptr<internal::WorkState> state_;  // nullptr: finished with status_
  absl::Status status_;
  int source_rank_ = -1;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_WORK_H_
