// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/processes/processes.h"

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/read_file.h"

namespace tandem::testing {

std::string ReadFile(const std::string& path) { return tandem::ReadFile(path).value_or(""); }

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

bool IsAlive(pid_t pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t end = stat.rfind(')');  // of the process's name, which may contain anything
  return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}

int MillisUntil(absl::Time deadline) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()) + 1));
}

// glibc 2.36 declares pidfd_open without extern "C".
int OpenPidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

bool AwaitProcessEnd(pid_t pid, absl::Time deadline) {
  const int pidfd = OpenPidfd(pid);
  if (pidfd < 0) return true;
  pollfd ready = {pidfd, POLLIN, 0};
  const bool ended = ::poll(&ready, 1, MillisUntil(deadline)) == 1;
  ::close(pidfd);
  return ended;
}

bool WaitUntilGone(pid_t pid) { return AwaitProcessEnd(pid, absl::Now() + kTestTimeout); }

std::vector<pid_t> ProcessesMarked(absl::string_view marker) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == ::getpid() || !IsAlive(pid))
      continue;
    if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/cmdline")), marker) ||
        absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), marker)) {
      found.push_back(pid);
    }
  }
  return found;
}

bool WaitUntilNoneMarked(absl::string_view marker) {
  const absl::Time deadline = absl::Now() + kTestTimeout;
  for (std::vector<pid_t> left = ProcessesMarked(marker); !left.empty(); left = ProcessesMarked(marker)) {
    if (absl::Now() > deadline || !WaitUntilGone(left.front())) return false;
  }
  return true;
}

}  // namespace tandem::testing
