#ifndef TANDEM_TESTS_CLI_PROFILING_TRACE_CHECKER_H_
#define TANDEM_TESTS_CLI_PROFILING_TRACE_CHECKER_H_

// What Perfetto's loader wants of a trace in Google's Trace Event Format, checked more strictly than it does.

#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace tandem::cli::testing {

// What is wrong, in words; none: nothing. Events must be "X", "s", "f" or "M" with all their fields; ordered
// by time from 0 on; every process and thread that has events has a name, and one only; the events of a
// thread nest; a flow has one beginning and one end, each at the start of an event of its thread.
std::vector<std::string> CheckTrace(const nlohmann::json& trace);

// The "X" events named so, of all processes.
std::vector<nlohmann::json> EventsNamed(const nlohmann::json& trace, const std::string& name);

}  // namespace tandem::cli::testing

#endif  // TANDEM_TESTS_CLI_PROFILING_TRACE_CHECKER_H_
