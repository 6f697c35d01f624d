#ifndef TANDEM_LAUNCHER_PROCESS_SPAWN_H_
#define TANDEM_LAUNCHER_PROCESS_SPAWN_H_

// Starting processes so that none outlives the launcher.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

struct SpawnOptions {
  std::string path;                      // of the executable
  std::vector<std::string> args;         // args[0] is the name it goes by
  std::vector<std::string> environment;  // "NAME=value", complete
  std::vector<int> cpus;                 // on which it may run; empty: on those of the caller
  int guardian_fd = -1;                  // ProcessReaper::fd()
};

struct Spawned {
  pid_t pid = -1;         // and its process group
  ipc::Descriptor pidfd;  // readable once it has ended
  ipc::Descriptor out;    // what it writes to stdout; non-blocking
  ipc::Descriptor err;    // ... to stderr
};

// Starts a process in a process group of its own, with an empty stdin, default signal handling, and SIGKILL
// to come should the calling thread end. Safe while other threads run. NotFound, PermissionDenied, ... when
// the program cannot be executed.
absl::StatusOr<Spawned> Spawn(const SpawnOptions& options);

// The file that `program` names: itself when it has a slash, else the first executable of that name in PATH.
// NotFound or PermissionDenied, saying where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& program);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_SPAWN_H_
