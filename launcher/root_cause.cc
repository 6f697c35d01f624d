// SPDX-License-Identifier: Apache-2.0
#include "launcher/root_cause.h"

#include <cstdint>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/error_file.h"

namespace tandem::launcher {
namespace {

// A process that may be the cause, with what it has left.
struct Suspect {
  Suspect(const Process* suspect)  // NOLINT: a vector of processes becomes one of these
      : process(suspect), report(ReadErrorReport(suspect->spec().error_file)) {}
  const Process* process;
  ErrorReport report;
};

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

bool IsConsequence(const Process& process) { return ReadErrorReport(process.spec().error_file).of_a_peer; }

const Process* NamedProcess(const std::string& job_failure, const std::vector<Process*>& failed,
                            const std::vector<const Process*>& running) {
  const auto named = [&job_failure](const Process* process) {
    return absl::StartsWith(job_failure, absl::StrCat(process->name(), ":")) ||
           absl::StartsWith(job_failure, absl::StrCat(process->name(), " "));
  };
  if (const auto it = absl::c_find_if(failed, named); it != failed.end()) return *it;
  if (const auto it = absl::c_find_if(running, named); it != running.end()) return *it;
  return nullptr;
}

RootCause FindRootCause(const std::vector<Process*>& failed, const std::vector<const Process*>& running,
                        const std::string& job_failure) {
  std::vector<Suspect> suspects(failed.begin(), failed.end()), others(running.begin(), running.end());
  const auto is_consequence = [](const Suspect& one) { return one.report.of_a_peer; };
  // A cause that has not ended yet has left its error file. One that goes on may have left it long ago.
  std::erase_if(others,
                [&](const Suspect& one) { return is_consequence(one) || one.report.written_ns == 0; });
  bool some_cause = true;
  if (absl::c_all_of(suspects, is_consequence)) {
    some_cause = !others.empty();
    if (some_cause) suspects = std::move(others);
  } else {
    std::erase_if(suspects, is_consequence);
  }

  RootCause cause;
  const auto killed = absl::c_find_if(
      suspects, [](const Suspect& one) { return one.process->ended() && one.process->killed(); });
  const Process* const named = NamedProcess(job_failure, failed, running);
  // A member may report what another one has caused, before that one has ended.
  const bool report_counts = !job_failure.empty() && killed == suspects.end() &&
                             !(some_cause && named != nullptr && IsConsequence(*named));
  if (report_counts) {
    cause.line = absl::StrCat("the job failed: ", job_failure);
    // The process that the reason names knows more than the first one that noticed.
    cause.process = named != nullptr ? named : failed.empty() ? nullptr : failed.front();
    cause.explained = named != nullptr && absl::StartsWith(job_failure, absl::StrCat(named->name(), ":"));
  } else if (killed != suspects.end()) {
    cause.process = killed->process;
    cause.line = cause.process->HowItEnded();
  } else {
    auto first = suspects.begin();
    if (first->report.written_ns != 0) {
      first = absl::c_min_element(suspects, [](const Suspect& a, const Suspect& b) {
        constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
        return (a.report.written_ns != 0 ? a.report.written_ns : kNone) <
               (b.report.written_ns != 0 ? b.report.written_ns : kNone);
      });
    }
    cause.process = first->process;
    cause.line = cause.process->ended()
                     ? cause.process->HowItEnded()
                     : absl::StrCat(cause.process->name(), " (pid ", cause.process->pid(), ") has failed");
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
  const std::string message = ReadErrorReport(process.spec().error_file).message;
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
