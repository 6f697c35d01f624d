// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_RUN_PROGRAM_H_
#define TANDEM_LAUNCHER_HOST_RUN_PROGRAM_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::launcher {

// Runs a program and returns what it prints to stdout and stderr, at most `max_output` bytes of it.
// command[0] is the program's path. Blocks until the program closes its output. After `timeout` it is killed
// and the result is DeadlineExceeded. Returns Unavailable if the program cannot be run or fails.
absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command, absl::Duration timeout,
                                       size_t max_output = size_t{64} << 10);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_RUN_PROGRAM_H_
