// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/checked_backend.h"

#include <utility>

#include "base/status.h"

namespace tandem::collectives {
namespace {

bool IsPointToPoint(const Operation& o) { return o.kind == OpKind::kSend || o.kind == OpKind::kRecv; }

}  // namespace

CheckedBackend::CheckedBackend(std::string group, int rank, int world_size, std::unique_ptr<Backend> backend,
                               std::unique_ptr<Backend> control)
    : backend_(std::move(backend)),
      control_(std::move(control)),
      comparer_(std::move(group), rank, world_size, control_.get()) {}

absl::Status CheckedBackend::broken() const {
  absl::MutexLock lock(&mutex_);
  return broken_;
}

absl::Status CheckedBackend::Run(const Operation& operation) {
  TANDEM_RETURN_IF_ERROR(Check(operation));
  return backend_->Run(operation);
}

absl::StatusOr<std::shared_ptr<DeviceWork>> CheckedBackend::Enqueue(absl::Span<const Operation> operations) {
  for (const Operation& operation : operations) {
    if (!IsPointToPoint(operation)) TANDEM_RETURN_IF_ERROR(Check(operation));
  }
  return backend_->Enqueue(operations);
}

void CheckedBackend::StartPointToPoint(const Operation& operation, Done done) {
  if (absl::Status status = broken(); !status.ok()) return done(status);
  backend_->StartPointToPoint(operation, std::move(done));
}

absl::StatusOr<int> CheckedBackend::RunPointToPoint(const Operation& operation) {
  TANDEM_RETURN_IF_ERROR(broken());
  return backend_->RunPointToPoint(operation);
}

absl::StatusOr<BackendFactory> CheckedBackend::Split(int color, int key, const BackendOptions& options) {
  TANDEM_RETURN_IF_ERROR(broken());
  return backend_->Split(color, key, options);
}

void CheckedBackend::Abort(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return;
    broken_ = reason;
  }
  control_->Abort(reason);
  backend_->Abort(reason);
}

absl::Status CheckedBackend::Check(const Operation& operation) {
  TANDEM_RETURN_IF_ERROR(broken());
  const absl::Status status = comparer_.Compare(operation);
  if (status.ok()) return status;
  // All ranks find the error by themselves, or through the end of the wrapped backend.
  {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    broken_ = status;
  }
  backend_->Abort(status);
  return status;
}

}  // namespace tandem::collectives
