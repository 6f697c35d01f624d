// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_COMMAND_CONTEXT_H_
#define TANDEM_BASE_COMMAND_CONTEXT_H_

// Definitions shared by main() of the `tandem` program and its subcommands in all modules.

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace tandem {

// Passes the command line from main() to a subcommand, and its exit code back. Outlives the parsing.
struct CommandContext {
  std::vector<std::string> program;  // for `tandem run`: the command line of the program to start
  int exit_code = 0;                 // set by the subcommand that ran
};

// The exit code of an invalid command line.
inline constexpr int kUsageError = 2;

// The exit code if a program that should be started does not exist, or cannot be executed; as of a shell.
inline constexpr int kCannotRun = 127;

// Returns FailedPrecondition with a mark that IsRefusal finds: nothing was begun, because the command line or
// the job must change. The message says how. The exit code is kUsageError.
absl::Status Refusal(const std::string& message);
bool IsRefusal(const absl::Status& status);

// Prints "tandem COMMAND: message" on stderr if `status` is an error. Returns the exit code: 0 for OK,
// kUsageError for a refusal, else 1.
int Report(const std::string& command, const absl::Status& status);

}  // namespace tandem

#endif  // TANDEM_BASE_COMMAND_CONTEXT_H_
