// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/descendants.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "launcher/process/process_reaper.h"

namespace tandem::launcher {
namespace {

constexpr absl::Duration kLongest = absl::Seconds(1);

// Returns "" for a process that is gone. It may go at any moment: reading then fails though opening did not.
std::string ReadProc(pid_t pid, absl::string_view file) {
  return ReadFile(absl::StrCat("/proc/", pid, "/", file)).value_or("");
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  DIR* const proc = ::opendir("/proc");
  if (proc == nullptr) return pids;
  while (const dirent* entry = ::readdir(proc)) {
    pid_t pid;
    if (absl::SimpleAtoi(entry->d_name, &pid)) pids.push_back(pid);
  }
  ::closedir(proc);
  return pids;
}

bool IsReaper(pid_t pid) { return ReadProc(pid, "comm") == absl::StrCat(kReaperName, "\n"); }

// Returns the parent of `pid`, or 0 if it is gone.
pid_t ParentOf(pid_t pid) {
  const std::string stat = ReadProc(pid, "stat");
  const size_t name_end = stat.rfind(')');  // the name may contain anything
  if (name_end == std::string::npos) return 0;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 1), ' ', absl::SkipWhitespace());
  pid_t parent = 0;
  return fields.size() > 1 && absl::SimpleAtoi(fields[1], &parent) ? parent : 0;
}

bool IsMarked(absl::string_view environment, absl::string_view mark) {
  return absl::StartsWith(environment, mark) ||
         absl::StrContains(environment, absl::StrCat(absl::string_view("\0", 1), mark));
}

}  // namespace

void KillMarked(absl::string_view value) {
  const std::string mark = absl::StrCat(kProcessVariable, "=", value);
  // A process that starts others while it is being looked for may be faster than one pass.
  const absl::Time deadline = MonotonicNow() + kLongest;
  std::set<pid_t> others = {::getpid()};  // a process without the mark does not get it later
  for (bool killed = true; killed && MonotonicNow() < deadline;) {
    killed = false;
    for (const pid_t pid : AllProcesses()) {
      if (others.contains(pid)) continue;
      const std::string environment = ReadProc(pid, "environ");
      if (environment.empty()) continue;  // perhaps in the middle of execve: the next pass looks again
      if (!IsMarked(environment, mark) || IsReaper(pid)) {
        others.insert(pid);
        continue;
      }
      killed = ::kill(pid, SIGKILL) == 0 || killed;
    }
    if (killed) absl::SleepFor(absl::Milliseconds(1));  // for them to end
  }
}

void AdoptOrphans() { ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); }

void ReapOrphans(const std::set<pid_t>& own) {
  for (;;) {
    siginfo_t info = {};
    if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return;
    // The kernel reports the same child until somebody waits for it; this is called again when its owner has.
    if (own.contains(info.si_pid)) return;
    ::waitpid(info.si_pid, nullptr, WNOHANG);
  }
}

void KillOrphans(const std::set<pid_t>& own) {
  const absl::Time deadline = MonotonicNow() + kLongest;
  for (bool any = true; any && MonotonicNow() < deadline;) {
    any = false;
    for (const pid_t pid : AllProcesses()) {
      if (own.contains(pid) || ParentOf(pid) != ::getpid() || IsReaper(pid)) continue;
      any = true;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, WNOHANG);
    }
    if (any) absl::SleepFor(absl::Milliseconds(1));
  }
}

}  // namespace tandem::launcher
