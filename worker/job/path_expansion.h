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

// Returns ExpandPath(text), below `directory` if it is a relative path. It stays as it is if `directory` is
// empty or `text` begins with a variable, because variables are set with the current directory in mind.
// InvalidArgument also for a URL (base/local_path.h).
absl::StatusOr<std::string> ResolvePath(absl::string_view text, absl::string_view directory);

// Returns the directory part of a file's path as ResolvePath takes it: "" for a file in the current
// directory.
std::string DirectoryOf(absl::string_view file);

// Returns a text that ExpandPath turns into `path`, or into "./" and `path` if that begins with '~'.
std::string EscapePath(absl::string_view path);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_PATH_EXPANSION_H_
