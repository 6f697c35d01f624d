// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_JOB_PATH_EXPANSION_H_
#define TANDEM_WORKER_JOB_PATH_EXPANSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::worker {

// Returns `text` with the following replaced:
//
// - ${NAME} by the value of the environment variable
//
// - ${NAME:-other} by the value, or by `other` if NAME is unset or empty
//
// - "$${" by "${"
//
// - then a leading "~" or "~/" by the home directory
//
// InvalidArgument for a variable that is unset or empty, a '~' without HOME, a '${' without '}' and an empty
// path. The message is a phrase that follows the name of a field.
absl::StatusOr<std::string> ExpandPath(absl::string_view text);

// Returns a text that ExpandPath turns into `path`, or into "./" and `path` if that begins with '~'.
std::string EscapePath(absl::string_view path);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_PATH_EXPANSION_H_
