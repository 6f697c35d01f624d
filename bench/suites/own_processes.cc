// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/own_processes.h"

#include "base/command_context.h"

namespace tandem::bench {

std::vector<std::string> GivenFlags(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() == 0) continue;
    flags.push_back("--" + option->get_lnames().front());
    if (option->get_items_expected_max() > 0) flags.push_back(option->results().back());
  }
  return flags;
}

int ReportBench(const std::string& command, const absl::Status& status) {
  const int code = Report(command, status);
  return absl::IsInvalidArgument(status) || absl::IsUnimplemented(status) ? kUsageError : code;
}

}  // namespace tandem::bench
