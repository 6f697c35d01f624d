// SPDX-License-Identifier: Apache-2.0
#include "collectives/backend.h"

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"

namespace tandem::collectives {

absl::StatusOr<std::shared_ptr<DeviceWork>> Backend::Enqueue(absl::Span<const Operation> operations) {
  for (const Operation& operation : operations) TANDEM_RETURN_IF_ERROR(Run(operation));
  return nullptr;
}

absl::StatusOr<BackendFactory> Backend::Split(int color, int key, const BackendOptions& options) {
  return absl::UnimplementedError(absl::StrCat("backend ", name(), " has no split"));
}

absl::StatusOr<int> Backend::RunPointToPoint(const Operation& operation) {
  absl::StatusOr<int> result = absl::UnknownError("");
  absl::Notification done;
  StartPointToPoint(operation, [&](absl::StatusOr<int> source) {
    result = std::move(source);
    done.Notify();
  });
  done.WaitForNotification();  // the backend bounds it by the operation's timeout
  return result;
}

absl::Status Backend::RegisterBuffer(TensorView) {
  return absl::UnimplementedError(absl::StrCat("backend ", name(), " does not register buffers"));
}

absl::Status Backend::DeregisterBuffer(TensorView) {
  return absl::UnimplementedError(absl::StrCat("backend ", name(), " does not register buffers"));
}

}  // namespace tandem::collectives
