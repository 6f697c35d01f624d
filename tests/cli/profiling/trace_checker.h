// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_PROFILING_TRACE_CHECKER_H_
#define TANDEM_TESTS_CLI_PROFILING_TRACE_CHECKER_H_

// Checks that a trace in Google's Trace Event Format meets the requirements of Perfetto's loader, more
// strictly than the loader does.

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::cli::testing {

// Returns a description of each mistake. The requirements are:
//
// - Events are "X", "s", "f" or "M", with all their fields, and ordered by time from 0 on.
// - Every process and thread that has events has exactly one name.
// - The events of a thread nest.
// - A flow has one beginning and one end, each at the start of an event of its thread.
std::vector<std::string> CheckTrace(const nlohmann::json& trace);

// Returns the "X" events of this name of all processes.
std::vector<nlohmann::json> EventsNamed(const nlohmann::json& trace, const std::string& name);

}  // namespace tandem::cli::testing

#endif  // TANDEM_TESTS_CLI_PROFILING_TRACE_CHECKER_H_
