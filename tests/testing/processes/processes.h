// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_TESTING_PROCESSES_PROCESSES_H_
#define TANDEM_TESTS_TESTING_PROCESSES_PROCESSES_H_

// Functions to find other processes and to wait for their end without polling.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::testing {

// Far longer than any operation takes, also under sanitizers.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// Returns the contents of the file, or "" if there is none: a process may end, and its files in /proc
// disappear, at any moment.
std::string ReadFile(const std::string& path);
// Returns the lines of `text`.
std::vector<std::string> Lines(const std::string& text);

// Returns the time until `deadline` in the form that poll() takes, rounded up.
int MillisUntil(absl::Time deadline);
// Returns a descriptor that is readable once the process has ended, or -1 if it is already gone. The caller
// closes it.
int OpenPidfd(pid_t pid);

// Returns true if a process with this id exists and is not a zombie.
bool IsAlive(pid_t pid);
// Waits until the process has ended. A child of this process must then still be reaped. Returns false if the
// process has not ended by `deadline`.
bool AwaitProcessEnd(pid_t pid, absl::Time deadline);
// Like AwaitProcessEnd, waiting at most kTestTimeout.
bool WaitUntilGone(pid_t pid);
// Returns the processes that have `marker` in their command line or environment, without the caller.
std::vector<pid_t> ProcessesMarked(absl::string_view marker);
// Waits until there are no such processes, at most kTestTimeout.
bool WaitUntilNoneMarked(absl::string_view marker);

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_PROCESSES_H_
