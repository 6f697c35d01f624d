// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_RUN_JOB_H_
#define TANDEM_LAUNCHER_RUN_JOB_H_

#include <string>
#include <vector>

#include "launcher/plan/flags.h"

namespace tandem::launcher {

// Runs this machine's part of a job, which is all that `tandem run` does after parsing its flags. `program`
// is the command line of the program to start. Fills in flags from an external launcher (Slurm, mpirun,
// Kubernetes), makes the launch plan, opens the rendezvous and runs a NodeAgent. Messages go to stderr.
//
// Call it once, from the main thread, while the process has no other thread: the launcher forks, and it
// handles SIGINT, SIGTERM and SIGHUP from then on. Blocks until the job is over and all processes have ended.
// Returns the exit code of NodeAgent::Run, or before a process was started:
//
// - 2 for mistakes in the flags or the cluster file.
// - 126 for a program that is not executable, 127 for one that is not found.
// - 1 for other errors.
int RunJob(RunFlags flags, const std::vector<std::string>& program);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_RUN_JOB_H_
