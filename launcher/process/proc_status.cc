// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/proc_status.h"

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/read_file.h"

namespace tandem::launcher {

ProcStatus ReadProcStatus(pid_t pid) {
  ProcStatus status;
  const std::string text = ReadFile(absl::StrCat("/proc/", pid, "/status")).value_or("");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const auto value = [&line](absl::string_view name) {
      return absl::ConsumePrefix(&line, name) && absl::ConsumePrefix(&line, ":");
    };
    if (value("State")) {
      status.state = std::string(absl::StripAsciiWhitespace(line));
    } else if (value("TracerPid")) {
      if (!absl::SimpleAtoi(line, &status.tracer)) status.tracer = 0;
    } else if (value("CoreDumping")) {
      status.dumping = absl::StripAsciiWhitespace(line) == "1";
    } else if (value("VmSize")) {
      status.exiting = false;
    }
  }
  // The kernel shows "0" to a reader without the right, and for a thread that runs.
  const std::string waits = ReadFile(absl::StrCat("/proc/", pid, "/wchan")).value_or("");
  if (waits != "0") status.waits = waits;
  return status;
}

}  // namespace tandem::launcher
