// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_PROC_STATUS_H_
#define TANDEM_LAUNCHER_PROCESS_PROC_STATUS_H_

#include <sys/types.h>

#include <string>

namespace tandem::launcher {

// A process as /proc shows it. A plain value.
struct ProcStatus {
  std::string state;     // "T (stopped)"; "" if the process is gone
  std::string waits;     // the kernel function in which its main thread waits; "" if it is not known
  pid_t tracer = 0;      // the debugger that holds it; 0: none
  bool dumping = false;  // it writes its core
  // It has no memory (any more): it is a zombie, or gone, or the kernel frees its memory at its end.
  bool exiting = true;
};

// Does not block.
ProcStatus ReadProcStatus(pid_t pid);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_PROC_STATUS_H_
