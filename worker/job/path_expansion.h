#ifndef TANDEM_WORKER_JOB_PATH_EXPANSION_H_
#define TANDEM_WORKER_JOB_PATH_EXPANSION_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::worker {

// Replaces ${NAME} by the environment's value, ${NAME:-text} by `text` where NAME is unset or empty, "$${" by
// "${", and then a leading "~/" by the home directory. InvalidArgument, a phrase to follow the field's name,
// for a variable that is not set, a '${' without '}' and an empty path.
absl::StatusOr<std::string> ExpandPath(absl::string_view text);

// Text that ExpandPath turns into `path`.
std::string EscapePath(absl::string_view path);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_PATH_EXPANSION_H_
