// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_SPAWN_H_
#define TANDEM_LAUNCHER_PROCESS_SPAWN_H_

// Starts processes in such a way that none outlives the launcher.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// The arguments of Spawn.
struct SpawnOptions {
  std::string path;                      // of the executable
  std::vector<std::string> args;         // args[0] is the program's name as it sees it
  std::vector<std::string> environment;  // "NAME=value", complete
  std::vector<int> cpus;                 // the processors it may use; empty: those of the caller
  int guardian_fd = -1;                  // ProcessReaper::fd()
  // A terminal that becomes the process's stdin, and whose foreground process group it becomes: Ctrl-C then
  // reaches the process instead of the caller. TakeTerminalBack() ends that. -1: stdin is empty.
  int terminal = -1;
  int inherited = -1;  // a descriptor that the process gets at the same number; -1: none
};

// A process that Spawn has started. The destructor neither kills it nor waits for it: the caller calls
// waitpid.
struct Spawned {
  pid_t pid = -1;         // also the number of its process group
  ipc::Descriptor pidfd;  // readable once the process has ended
  ipc::Descriptor out;    // the read end of its stdout; non-blocking
  ipc::Descriptor err;    // the read end of its stderr; non-blocking
};

// Starts a process in a process group of its own, with default handling of signals except those that the
// caller ignores (SIGPIPE has its default always). The kernel kills the process when the calling thread ends.
// Blocks until the program is executed. Safe while other threads run. Returns the error of exec (NotFound,
// PermissionDenied, ...) if the program cannot be executed.
absl::StatusOr<Spawned> Spawn(const SpawnOptions& options);

// Makes the caller's process group the foreground group of `terminal` again. No effect if it is no terminal
// of the caller's session.
void TakeTerminalBack(int terminal);

// Returns the path of `program`: `program` itself if it contains a slash, else the first executable file of
// that name in PATH. Returns NotFound, or PermissionDenied for a path without execute permission; the message
// says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& program);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_SPAWN_H_
