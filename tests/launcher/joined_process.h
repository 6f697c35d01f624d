// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_LAUNCHER_JOINED_PROCESS_H_
#define TANDEM_TESTS_LAUNCHER_JOINED_PROCESS_H_

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "tests/testing/processes/processes.h"

namespace tandem::launcher {

// Returns whether the process holds the page in which it beats (cluster/membership/beat.h).
inline bool Beats(pid_t pid) {
  std::error_code gone;
  for (std::filesystem::directory_iterator at(absl::StrCat("/proc/", pid, "/fdinfo"), gone), end;
       !gone && at != end; at.increment(gone)) {
    if (absl::StrContains(testing::ReadFile(at->path()), absl::StrCat("POSIX  ADVISORY  WRITE ", pid))) {
      return true;
    }
  }
  return false;
}

// Returns a process with TANDEM_TEST_MARK=`mark` and the variables `wanted` ("NAME=value") that has joined
// its job and beats. Waits for it; 0 if there is none within kTestTimeout.
inline pid_t JoinedProcess(absl::string_view mark, const std::vector<std::string>& wanted) {
  const std::string end_of_word(1, '\0');
  for (const absl::Time end = MonotonicNow() + testing::kTestTimeout; MonotonicNow() < end;) {
    for (const pid_t pid : testing::ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", mark))) {
      const std::string text =
          absl::StrCat(end_of_word, testing::ReadFile(absl::StrCat("/proc/", pid, "/environ")));
      bool all = Beats(pid);
      for (const std::string& one : wanted) {
        all = all && absl::StrContains(text, absl::StrCat(end_of_word, one, end_of_word));
      }
      if (all) return pid;
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
  return 0;
}

}  // namespace tandem::launcher

#endif  // TANDEM_TESTS_LAUNCHER_JOINED_PROCESS_H_
