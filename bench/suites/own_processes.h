#ifndef TANDEM_BENCH_SUITES_OWN_PROCESSES_H_
#define TANDEM_BENCH_SUITES_OWN_PROCESSES_H_

// What the subcommands of `tandem bench` that start processes of their own have in common.

#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::bench {

// A directory for the sockets of a benchmark's processes. It goes with the object.
class SocketDirectory {
 public:
  // The error names what could not be made.
  static absl::StatusOr<std::unique_ptr<SocketDirectory>> Make();
  ~SocketDirectory();
  const std::string& path() const { return path_; }

 private:
  explicit SocketDirectory(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

// The flags with which `command` was called, for its own processes to be called with.
std::vector<std::string> GivenFlags(const CLI::App& command);

// As Report, but kUsageError for what InvalidArgument and Unimplemented say of the flags.
int ReportBench(const std::string& command, const absl::Status& status);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_OWN_PROCESSES_H_
