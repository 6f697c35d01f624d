// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_OWN_PROCESSES_H_
#define TANDEM_BENCH_SUITES_OWN_PROCESSES_H_

// Helpers for the subcommands of `tandem bench` that start their own processes.

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::bench {

// A temporary directory for the sockets of a benchmark's processes. The destructor removes it.
class SocketDirectory {
 public:
  // Creates the directory. The error names the path.
  static absl::StatusOr<std::unique_ptr<SocketDirectory>> Make();
  ~SocketDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit SocketDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// Returns the flags with which `command` was called, to pass them on to its processes.
std::vector<std::string> GivenFlags(const CLI::App& command);

// Like Report, but returns kUsageError for InvalidArgument and Unimplemented, which are errors in the flags.
int ReportBench(const std::string& command, const absl::Status& status);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_OWN_PROCESSES_H_
