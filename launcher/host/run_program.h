#ifndef TANDEM_LAUNCHER_HOST_RUN_PROGRAM_H_
#define TANDEM_LAUNCHER_HOST_RUN_PROGRAM_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::launcher {

// What the program, given by its path, prints to stdout and stderr, at most 64 KiB of it. Blocks until it has
// ended; DeadlineExceeded, and it is killed, after `timeout`; Unavailable if it cannot be run or fails.
absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command, absl::Duration timeout);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_RUN_PROGRAM_H_
