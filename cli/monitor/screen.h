#ifndef TANDEM_CLI_MONITOR_SCREEN_H_
#define TANDEM_CLI_MONITOR_SCREEN_H_

// A snapshot as text of a given width. Pure functions: what `tandem top` draws can be read in a test.

#include <string>
#include <vector>

#include "cli/monitor/activity.h"

namespace tandem::cli {

// What tables are sorted by; all but kName descend.
enum class SortBy { kName, kRows, kBytes, kPulls, kPushes, kRowsPerSecond, kPullP99 };
inline constexpr int kNumSorts = 7;

struct ScreenOptions {
  size_t columns = 80;  // no line is longer
  SortBy sort = SortBy::kName;
  bool reversed = false;
  bool colours = false;  // ANSI escapes for headings and for a server that does not answer; beyond `columns`
};

// Lines without line ends.
std::vector<std::string> DrawSnapshot(const Snapshot& now, const Snapshot* before,
                                      const ScreenOptions& options);

// At most 5 characters: "999", "12.3k", "4.5M".
std::string ShortNumber(double value);
// At most 6 characters: "850us", "12.3ms", "4.5s".
std::string ShortTime(double us);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_SCREEN_H_
