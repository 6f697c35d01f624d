// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/own_processes.h"

#include <stdlib.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/command_context.h"

namespace tandem::bench {

absl::StatusOr<std::unique_ptr<SocketDirectory>> SocketDirectory::Make() {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  std::string path = absl::StrCat(error ? "/tmp" : parent.string(), "/tandem-bench-XXXXXX");
  if (::mkdtemp(path.data()) == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make a directory like ", path));
  }
  return std::unique_ptr<SocketDirectory>(new SocketDirectory(path));
}

SocketDirectory::~SocketDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

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
