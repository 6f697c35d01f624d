// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_ROOT_CAUSE_H_
#define TANDEM_LAUNCHER_ROOT_CAUSE_H_

// Finds out which process caused the failure of a round, and tells the user about it.

#include <string>
#include <vector>

#include "launcher/process/console.h"
#include "launcher/process/processes.h"

namespace tandem::launcher {

// A plain value, which borrows the process.
struct RootCause {
  std::string line;                  // the failure in one line
  const Process* process = nullptr;  // the process that caused it; nullptr: not known
  bool explained = false;            // whether `line` is the process's own error message
  int exit_code = 1;                 // the job's, if it ends with this failure
};

// Returns whether the process has noted that its failure has its cause in another one: its peer in a process
// group has failed.
bool IsConsequence(const Process& process);

// Returns the process that `job_failure` names, of `failed` or else of `running`: nullptr if there is none.
const Process* NamedProcess(const std::string& job_failure, const std::vector<Process*>& failed,
                            const std::vector<const Process*>& running);

// Finds the cause of a failure. The suspects are the failed processes whose failure is no consequence. If
// there is none, they are the running processes that have left an error file, and at last all failed
// processes. The cause is
//
// 1. the first process that was killed by a signal, because its death explains the errors of others.
// 2. the process that `job_failure` names. This is the error message that a member has reported, or "".
// 3. the first process that has ended, if it has left no error file.
// 4. the process whose error file is the oldest.
//
// Requires a failed process or a job_failure. `failed` are the failed processes in the order in which they
// ended, `running` those that still run.
RootCause FindRootCause(const std::vector<Process*>& failed, const std::vector<const Process*>& running,
                        const std::string& job_failure);

// Writes the process's error message, the last lines of its output, and advice if they show a known mistake,
// to `console`. Returns the text to add to the reason that other nodes see: ": " and the message, or the last
// line; "" if there is neither. `master_port` is named in an advice.
std::string SayLastWords(const Process& process, int master_port, Console& console);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_ROOT_CAUSE_H_
