// SPDX-License-Identifier: Apache-2.0
#include "ps/client/wire_options.h"

#include "absl/strings/str_cat.h"

namespace tandem::ps {

absl::Status ValidateWireOptions(const WireOptions& options) {
  for (const v1::ValueFormat format : {options.pull_values, options.push_values}) {
    if (v1::ValueFormat_IsValid(format)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("unknown value format ", static_cast<int>(format), ", expected f32, f16, bf16 or int8"));
  }
  if (options.UsesErrorFeedback() && options.error_feedback_bytes == 0) {
    return absl::InvalidArgumentError(
        "error_feedback_bytes is 0: give it room, or switch error_feedback off for this table");
  }
  return absl::OkStatus();
}

}  // namespace tandem::ps
