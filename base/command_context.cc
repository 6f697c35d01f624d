// SPDX-License-Identifier: Apache-2.0
#include "base/command_context.h"

#include <cstdio>

#include "absl/strings/cord.h"

namespace tandem {

namespace {
constexpr char kRefusal[] = "tandem/refusal";
}  // namespace

absl::Status Refusal(const std::string& message) {
  absl::Status status = absl::FailedPreconditionError(message);
  status.SetPayload(kRefusal, absl::Cord());
  return status;
}

bool IsRefusal(const absl::Status& status) { return status.GetPayload(kRefusal).has_value(); }

int Report(const std::string& command, const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "tandem %s: %s\n", command.c_str(), std::string(status.message()).c_str());
  return IsRefusal(status) ? kUsageError : 1;
}

}  // namespace tandem
