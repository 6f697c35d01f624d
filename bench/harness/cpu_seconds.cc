// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/cpu_seconds.h"

#include <time.h>

#include <cerrno>

#include "absl/strings/str_cat.h"

namespace tandem::bench {

absl::StatusOr<double> CpuSecondsOf(pid_t pid) {
  clockid_t clock;
  timespec time;
  if (const int error = ::clock_getcpuclockid(pid, &clock); error != 0) {
    return absl::UnavailableError(absl::StrCat("process ", pid, " is gone: error ", error));
  }
  if (::clock_gettime(clock, &time) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("processor time of process ", pid));
  }
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace tandem::bench
