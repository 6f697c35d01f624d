// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_PROFILING_CHROME_JSON_H_
#define TANDEM_CLI_PROFILING_CHROME_JSON_H_

// Writes timelines in Google's Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing
// read.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/profiling/collect.h"
#include "cli/profiling/timeline.h"

namespace tandem::cli {

// Writes the file `path`, replacing an existing file atomically. Errors name the path. The file has:
//
// - an "X" event for each event, ordered by time.
// - an "s" and an "f" event for each joined call.
// - an "M" event for the name of each process and thread.
// - "otherData": the processes that are missing, the number of lost events, and the error of the clocks.
absl::Status WriteChromeJson(const std::string& path, const Timeline& timeline,
                             const std::vector<CollectedTrace>& collected);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_CHROME_JSON_H_
