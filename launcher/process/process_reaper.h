// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_PROCESS_REAPER_H_
#define TANDEM_LAUNCHER_PROCESS_PROCESS_REAPER_H_

// Kills the processes that a launcher started if the launcher dies without cleaning up (kill -9, out of
// memory).
//
// The children also have PR_SET_PDEATHSIG, but that signal reaches direct children only, and a worker that is
// a shell or Python script starts processes of its own. The reaper is a small process, a child of the
// launcher. It learns every process group through a pipe, and kills the groups when the pipe's other end
// closes, which means that the launcher has ended.
//
// The launcher may also give its processes a deadline and put it off again and again. If it does not, because
// it is stopped (SIGSTOP) or hangs, the reaper kills the groups at the deadline, but not descendants that
// have left them.

#include <sys/types.h>

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// The name of the reaper process, as ps(1) shows it.
inline constexpr char kReaperName[] = "tandem-guard";

// The launcher's handle of the reaper process. Not thread-safe.
class ProcessReaper {
 public:
  // Forks the reaper process. Requires that the calling process has only one thread. Besides the groups, the
  // reaper kills the processes whose kProcessVariable begins with `marks` (descendants.h).
  static absl::StatusOr<std::unique_ptr<ProcessReaper>> Start(const std::string& marks);
  // Ends the reaper process, which first kills all groups that were registered and not forgotten. Blocks
  // until it has ended.
  ~ProcessReaper();

  // Registers a process group. A child calls it between fork and exec, with `fd` from fd().
  // Async-signal-safe.
  static void Register(int fd, pid_t group);
  int fd() const { return pipe_.get(); }
  // Sets the time of MonotonicNow() at which the reaper kills all groups; at first it is InfiniteFuture. A
  // deadline that has passed before this call has its effect all the same, once. Thread-safe.
  void KillAt(absl::Time deadline);
  // Removes a group that has ended, because the kernel may give its number to other processes.
  void Forget(pid_t group);
  // The reaper process.
  pid_t pid() const { return pid_; }

 private:
  ProcessReaper(ipc::Descriptor pipe, pid_t pid) : pipe_(std::move(pipe)), pid_(pid) {}

  ipc::Descriptor pipe_;
  const pid_t pid_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_PROCESS_REAPER_H_
