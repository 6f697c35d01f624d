// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PROCESS_DESCENDANTS_H_
#define TANDEM_LAUNCHER_PROCESS_DESCENDANTS_H_

// Finds the processes that a worker has started, also those that have left its process group and session
// (setsid, daemons). Two marks lead to them:
//
// - the environment variable kProcessVariable, which each process of a launcher gets with a value of its own
// and
//   hands on to the processes that it starts;
// - the parent: a launcher is the subreaper of its descendants, so that orphans become its children.
//
// A process is missed only while it hides from both: it has replaced its environment and its parent still
// lives.

#include <sys/types.h>

#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "base/process/own_launcher.h"

namespace tandem::launcher {

// Kills (SIGKILL) the processes of this user whose environment has kProcessVariable with a value that begins
// with `value`, except the caller and process reapers, which end by themselves. Blocks at most a second.
void KillMarked(absl::string_view value);

// Makes the caller the subreaper of its descendants.
void AdoptOrphans();

// Waits for the caller's children that have ended, as long as they are none of `own`. Never blocks.
void ReapOrphans(const std::set<pid_t>& own);

// Kills the caller's children other than `own`, and those that it inherits from them. Blocks until they have
// ended, at most a second. Process reapers are left alone.
void KillOrphans(const std::set<pid_t>& own);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_DESCENDANTS_H_
