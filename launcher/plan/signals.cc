// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/signals.h"

#include <signal.h>

#include <iterator>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem::launcher {
namespace {

// The signals that end a process by default and may be handled without harm. Faults (SIGSEGV) and timers
// belong to the program.
constexpr int kUsable[] = {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU};

}  // namespace

absl::StatusOr<std::vector<int>> ParseSignals(absl::string_view text) {
  std::vector<int> signals;
  for (const absl::string_view word : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::string upper = absl::AsciiStrToUpper(absl::StripAsciiWhitespace(word));
    const absl::string_view name = absl::StripPrefix(upper, "SIG");
    const auto* const found =
        absl::c_find_if(kUsable, [&](int signal) { return name == ::sigabbrev_np(signal); });
    if (found == std::end(kUsable)) {
      std::string usable;
      for (const int signal : kUsable) {
        absl::StrAppend(&usable, usable.empty() ? "" : ", ", "SIG", ::sigabbrev_np(signal));
      }
      return absl::InvalidArgumentError(
          absl::StrCat("--signals-to-handle: '", word, "' is none of ", usable));
    }
    if (!absl::c_linear_search(signals, *found)) signals.push_back(*found);
  }
  return signals;
}

}  // namespace tandem::launcher
