#ifndef TANDEM_CLI_PROFILING_CHROME_JSON_H_
#define TANDEM_CLI_PROFILING_CHROME_JSON_H_

// Google's Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing read.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/profiling/collect.h"
#include "cli/profiling/timeline.h"

namespace tandem::cli {

// Replaced at once and whole. "X" events, ordered by time; an "s" and an "f" for each joined call; "M" for
// the names of all processes and threads; "otherData" with who is missing, what was lost and how far clocks
// may be off. Errors name the path.
absl::Status WriteChromeJson(const std::string& path, const Timeline& timeline,
                             const std::vector<CollectedTrace>& collected);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_CHROME_JSON_H_
