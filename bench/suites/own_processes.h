// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_SUITES_OWN_PROCESSES_H_
#define TANDEM_BENCH_SUITES_OWN_PROCESSES_H_

// Helpers for the subcommands of `tandem bench` that start their own processes.

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace tandem::bench {

// Returns the flags with which `command` was called, to pass them on to its processes.
std::vector<std::string> GivenFlags(const CLI::App& command);

// Like Report, but returns kUsageError for InvalidArgument and Unimplemented, which are errors in the flags.
int ReportBench(const std::string& command, const absl::Status& status);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_SUITES_OWN_PROCESSES_H_
