// SPDX-License-Identifier: Apache-2.0
#include "base/process/own_launcher.h"

#include <string.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem {

pid_t OwnLauncher() {
  // A process that inherits the variable from a child of the launcher has another parent.
  const char* const value = std::getenv(kProcessVariable);
  if (value == nullptr) return 0;
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(absl::string_view(value), absl::MaxSplits('-', 1));
  pid_t launcher = 0;
  return absl::SimpleAtoi(parts.first, &launcher) && launcher == ::getppid() ? launcher : 0;
}

std::string SignalName(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name == nullptr ? absl::StrCat("signal ", signal) : absl::StrCat("SIG", name);
}

}  // namespace tandem
