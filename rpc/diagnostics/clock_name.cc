// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/clock_name.h"

#include <sys/stat.h>

#include <fstream>

#include "absl/strings/str_cat.h"

namespace tandem::rpc {

std::string ClockName() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat time {};
  const bool known = ::stat("/proc/self/ns/time", &time) == 0;
  return absl::StrCat(boot, "/", known ? time.st_ino : 0);
}

}  // namespace tandem::rpc
