#ifndef TANDEM_TESTS_TESTING_PROCESSES_PROCESSES_H_
#define TANDEM_TESTS_TESTING_PROCESSES_PROCESSES_H_

// Other processes: which there are, and their end, awaited without looking again and again.

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::testing {

// Far more than anything takes, also under sanitizers.
inline constexpr absl::Duration kTestTimeout = absl::Seconds(60);

// "" where there is none: a process may end, and its files in /proc go, at any moment.
std::string ReadFile(const std::string& path);
std::vector<std::string> Lines(const std::string& text);

// What poll() takes, rounded up.
int MillisUntil(absl::Time deadline);
// Readable once the process has ended; -1 when it is gone already. The caller closes it.
int OpenPidfd(pid_t pid);

// Whether a process with this number exists that is no zombie.
bool IsAlive(pid_t pid);
// Waits until the process has ended; a child of ours is then still to be reaped. False if it has not by
// `deadline`.
bool AwaitProcessEnd(pid_t pid, absl::Time deadline);
// The same, at most kTestTimeout.
bool WaitUntilGone(pid_t pid);
// The processes that carry `marker` in their command line or environment, beside the caller.
std::vector<pid_t> ProcessesMarked(absl::string_view marker);
// Waits until there are none, at most kTestTimeout.
bool WaitUntilNoneMarked(absl::string_view marker);

}  // namespace tandem::testing

#endif  // TANDEM_TESTS_TESTING_PROCESSES_PROCESSES_H_
