// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_MONITOR_SCREEN_H_
#define TANDEM_CLI_MONITOR_SCREEN_H_

// Draws a snapshot as text of a given width, for `tandem top`. The functions are pure, so that tests can read
// the result.

#include <string>
#include <vector>

#include "cli/monitor/activity.h"

namespace tandem::cli {

// The key by which tables are sorted: kName in ascending order, the others in descending order.
enum class SortBy { kName, kRows, kBytes, kPulls, kPushes, kRowsPerSecond, kPullP99 };
inline constexpr int kNumSorts = 7;

struct ScreenOptions {
  size_t columns = 80;  // the longest line, without the bytes of ANSI escapes
  SortBy sort = SortBy::kName;
  bool reversed = false;
  bool colours = false;  // whether to mark headings and servers that do not respond by ANSI escapes
};

// Returns the picture's lines, without newlines. `before` may be nullptr, as for Activity.
std::vector<std::string> DrawSnapshot(const Snapshot& now, const Snapshot* before,
                                      const ScreenOptions& options);

// Returns a number in at most 5 characters: "999", "12.3k", "4.5M".
std::string ShortNumber(double value);
// Returns a time in at most 6 characters: "850us", "12.3ms", "4.5s".
std::string ShortTime(double us);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_MONITOR_SCREEN_H_
