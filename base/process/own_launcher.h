// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_PROCESS_OWN_LAUNCHER_H_
#define TANDEM_BASE_PROCESS_OWN_LAUNCHER_H_

#include <sys/types.h>

#include <string>

namespace tandem {

// The environment variable that `tandem run` gives to each of its processes, with a value of its own. It
// begins with the launcher's pid and '-'. Processes that such a process starts inherit it.
inline constexpr char kProcessVariable[] = "TANDEM_PROCESS";

// Returns the pid of the launcher that has started this process as its child, or 0 if none has.
pid_t OwnLauncher();

// Returns the name of a signal, such as "SIGTERM", or "signal 70" if it has none.
std::string SignalName(int signal);

}  // namespace tandem

#endif  // TANDEM_BASE_PROCESS_OWN_LAUNCHER_H_
