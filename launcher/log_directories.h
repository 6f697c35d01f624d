// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_LOG_DIRECTORIES_H_
#define TANDEM_LAUNCHER_LOG_DIRECTORIES_H_

// The directories below --wal-dir, in which the durable parameter servers of a job keep their logs
// (docs/durability.md): RUN-EPOCH/ps-RANK. Several jobs may share one --wal-dir.

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"

namespace tandem::launcher {

// Makes way for the log of a server in a new round: renames `directory`, if it exists, to "<directory>.old",
// which replaces an earlier one. Errors, after which `directory` is as it was:
//
//   - Unavailable: a server uses it, of another job with the same run id
//   - those of the file system
absl::Status SetLogAside(const std::string& directory);
// Removes RUN-EPOCH of all epochs below `directory`, and `directory` if it is empty then. Keeps what a server
// still uses, and logs a warning of each error.
void RemoveLogs(const std::string& directory, const std::string& run_id);
// Returns whether the server with this process id had begun to serve, with its log in `directory`.
bool HasServed(const std::string& directory, pid_t pid);
// Returns the name of the file by which a server tells that it serves: it holds the process id.
std::string ServingFile(const std::string& directory);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_LOG_DIRECTORIES_H_
