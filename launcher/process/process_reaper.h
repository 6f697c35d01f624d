#ifndef TANDEM_LAUNCHER_PROCESS_PROCESS_REAPER_H_
#define TANDEM_LAUNCHER_PROCESS_PROCESS_REAPER_H_

// Kills what a launcher started if the launcher dies in a way that lets it clean up nothing (kill -9, out of
// memory).
//
// PR_SET_PDEATHSIG, which the children have as well, reaches children only; a worker that is a shell or
// Python script starts processes of its own. The guardian is a small process that is told every process group
// and sees the launcher's end as the end of a pipe.

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// Not thread-safe.
class ProcessReaper {
 public:
  // Forks: call while the process has one thread.
  static absl::StatusOr<std::unique_ptr<ProcessReaper>> Start();
  // Nothing is killed by it any more once this has returned: forget all groups first.
  ~ProcessReaper();

  // Written to by a child between fork and exec; async-signal-safe.
  static void Register(int fd, pid_t group);
  int fd() const { return pipe_.get(); }
  // The group has ended, its number may be given to others.
  void Forget(pid_t group);

 private:
  ProcessReaper(ipc::Descriptor pipe, pid_t pid) : pipe_(std::move(pipe)), pid_(pid) {}

  ipc::Descriptor pipe_;
  const pid_t pid_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_PROCESS_REAPER_H_
