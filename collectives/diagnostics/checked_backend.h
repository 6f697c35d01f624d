// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_CHECKED_BACKEND_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_CHECKED_BACKEND_H_

// CheckedBackend implements DebugLevel::kDetail for backends that do not compare fingerprints (nccl). It
// corresponds to torch.distributed's ProcessGroupWrapper.

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backend.h"
#include "collectives/diagnostics/operation_comparer.h"

namespace tandem::collectives {

// A backend that checks, before it passes a collective to the backend it wraps, that all ranks call the same
// collective. OperationComparer says how, through the second backend `control`, and what the errors are. If
// the check fails, the wrapped backend has not begun the collective.
//
// After a failed check the group is broken: the wrapped backend is aborted, and every later operation returns
// the error. Point-to-point operations are passed on unchecked: their two sides check each other.
//
// The check may block for operation.timeout, and so may the collective after it. Enqueue blocks as well
// while the ranks exchange fingerprints, once for each collective of the batch; none of them begins before
// all are checked.
//
// Threads: as Backend says. Apart from Abort, only the thread that runs the collective uses `control`.
class CheckedBackend final : public Backend {
 public:
  // `control` is a backend of the same ranks for CPU memory, used by this object only. `group` is the group's
  // name, for messages.
  CheckedBackend(std::string group, int rank, int world_size, std::unique_ptr<Backend> backend,
                 std::unique_ptr<Backend> control);

  absl::string_view name() const override { return backend_->name(); }
  absl::Status Supports(const Operation& operation) const override { return backend_->Supports(operation); }
  absl::Status Run(const Operation& operation) override;
  absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations) override;
  void StartPointToPoint(const Operation& operation, Done done) override;
  absl::StatusOr<int> RunPointToPoint(const Operation& operation) override;
  absl::Status RegisterBuffer(TensorView buffer) override { return backend_->RegisterBuffer(buffer); }
  absl::Status DeregisterBuffer(TensorView buffer) override { return backend_->DeregisterBuffer(buffer); }
  // Passed on unchecked. The subgroup's backend is not a CheckedBackend.
  bool CanSplit() const override { return backend_->CanSplit(); }
  absl::StatusOr<BackendFactory> Split(int color, int key, const BackendOptions& options) override;
  // Aborts both backends.
  void Abort(const absl::Status& reason) override;

 private:
  // Returns OK if all ranks are about to run `operation`; otherwise breaks the group.
  absl::Status Check(const Operation& operation);
  absl::Status broken() const;

  const std::unique_ptr<Backend> backend_, control_;
  OperationComparer comparer_;  // used by the thread that runs collectives
  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_CHECKED_BACKEND_H_
