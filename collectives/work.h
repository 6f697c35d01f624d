#ifndef TANDEM_COLLECTIVES_WORK_H_
#define TANDEM_COLLECTIVES_WORK_H_

// A running or finished operation of a process group; torch.distributed's Work.

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

// A handle: copies speak of the same operation. Thread-safe. Dropping it does not cancel the operation; the
// buffers must stay until it is completed (the group's destructor completes everything).
class [[nodiscard]] Work {
 public:
  // Finished.
  explicit Work(absl::Status status = absl::OkStatus(), int source_rank = -1)
      : status_(std::move(status)), source_rank_(source_rank) {}
  explicit Work(std::shared_ptr<internal::WorkState> state) : state_(std::move(state)) {}

  // Blocks until completed, at most `timeout`, and returns the operation's status. DeadlineExceeded when it
  // still runs after `timeout`: it goes on (its own timeout bounds it). On a GPU, where the operation's
  // stream matters and not this thread, prefer OrderStream.
  absl::Status Wait(absl::Duration timeout = absl::InfiniteDuration()) const;
  bool IsCompleted() const;
  // Of a completed operation; Unavailable while it runs.
  absl::Status status() const;
  // Runs `callback` when completed: now, in this thread, if it is already, else in the thread that completes
  // it. It must not block, nor wait for another operation of the same group.
  void Then(std::function<void(const absl::Status&)> callback) const;
  // Of a completed recv: who sent.
  int source_rank() const;
  // GPU operations: see DeviceWork. OK at once for operations on the CPU, after waiting for them.
  absl::Status OrderStream(void* stream) const;

 private:
  std::shared_ptr<internal::WorkState> state_;  // nullptr: finished with status_
  absl::Status status_;
  int source_rank_ = -1;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_WORK_H_
