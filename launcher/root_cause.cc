// SPDX-License-Identifier: Apache-2.0
#include "launcher/root_cause.h"

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/error_file.h"

namespace tandem::launcher {
namespace {

// Returns advice for the user if the last lines of the output show a known mistake, else "".
std::string Advice(const ChildOutput& output, int master_port) {
  for (const std::string& line : output.tail()) {
    if (absl::StrContains(line, "ddress already in use") || absl::StrContains(line, "EADDRINUSE")) {
      return absl::StrCat(
          "a port was taken. MASTER_PORT (", master_port,
          ") is kept free for rank 0, which must bind it with SO_REUSEADDR as PyTorch does; other "
          "ports are the program's own choice: port 0 lets the kernel pick a free one");
    }
  }
  return "";
}

}  // namespace

RootCause FindRootCause(const std::vector<Process*>& failed, const std::vector<const Process*>& running,
                        const std::string& job_failure) {
  const auto killed = absl::c_find_if(failed, [](const Process* process) { return process->killed(); });
  RootCause cause;
  cause.process = killed != failed.end() ? *killed : failed.empty() ? nullptr : failed.front();
  if (!job_failure.empty() && killed == failed.end()) {
    cause.line = absl::StrCat("the job failed: ", job_failure);
    // The process that the reason names knows more than the first one that noticed.
    const auto consider = [&](const Process* process) {
      const bool speaks = absl::StartsWith(job_failure, absl::StrCat(process->name(), ":"));
      if (!speaks && !absl::StartsWith(job_failure, absl::StrCat(process->name(), " "))) return;
      cause.process = process;
      cause.explained = speaks;
    };
    for (const Process* process : running) consider(process);
    for (const Process* process : failed) consider(process);
  } else {
    cause.line = cause.process->HowItEnded();
  }
  const Process* code = cause.process != nullptr && cause.process->ended() ? cause.process
                        : failed.empty()                                   ? nullptr
                                                                           : failed.front();
  if (code != nullptr && code->exit_code() != 0) cause.exit_code = code->exit_code();
  return cause;
}

std::string SayLastWords(const Process& process, int master_port, Console& console) {
  const ChildOutput& output = process.output();
  std::string reason;
  const std::string message = ReadErrorFile(process.spec().error_file);
  if (!message.empty()) {
    console.Say(absl::StrCat("it said: ", message));
    reason = absl::StrCat(": ", message);
  }
  if (!output.tail().empty()) {
    console.Say(absl::StrCat("the last lines of ", output.log_path(), ":"));
    for (const std::string& text : output.tail()) console.Say(absl::StrCat("  | ", text));
    if (message.empty()) reason = absl::StrCat(": ", output.tail().back());
  } else {
    console.Say(absl::StrCat(output.log_path(), " is empty"));
  }
  if (const std::string advice = Advice(output, master_port); !advice.empty()) console.Say(advice);
  return reason;
}

}  // namespace tandem::launcher
