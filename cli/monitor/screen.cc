// SPDX-License-Identifier: Apache-2.0
#include "cli/monitor/screen.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "ps/row_staleness.h"
#include "ps/table.h"

namespace tandem::cli {
namespace {

using Cells = std::vector<std::string>;

// Returns `text`, cut to `width` if necessary and then with "~" as its last character.
std::string Shortened(const std::string& text, size_t width) {
  return text.size() <= width || width == 0 ? text.substr(0, width) : text.substr(0, width - 1) + "~";
}

// Lays out a list. The first column is as wide as its longest cell, if the line is long enough, and
// left-aligned; the other columns are right-aligned.
struct Columns {
  size_t total;
  size_t longest;              // width of the first column's longest cell
  std::vector<size_t> widths;  // of the other columns
  std::string Line(const Cells& cells) const {
    size_t rest = 0;
    for (const size_t width : widths) rest += width + 1;
    // On a narrow screen the columns at the right are missing, not the names.
    constexpr size_t kLeast = 9;
    const size_t first = std::min(longest, std::max(kLeast, total > rest ? total - rest : 0));
    std::string line = Shortened(cells[0], first);
    line.resize(first, ' ');
    for (size_t i = 0; i < widths.size(); ++i) {
      const std::string cell = cells[i + 1].substr(0, widths[i]);
      absl::StrAppend(&line, " ", std::string(widths[i] - cell.size(), ' '), cell);
    }
    return line.substr(0, total);
  }
  // Fills the line up to the width of the screen.
  std::string Heading(const Cells& cells) const {
    std::string line = Line(cells);
    line.resize(total, ' ');
    return line;
  }
};

std::string Coloured(const std::string& line, const char* code, bool colours) {
  return colours ? absl::StrCat("\x1b[", code, "m", line, "\x1b[0m") : line;
}
constexpr char kHeading[] = "7";
constexpr char kBad[] = "31";

std::string Uptime(double seconds) {
  const int64_t s = static_cast<int64_t>(seconds);
  if (s < 60) return absl::StrCat(s, "s");
  if (s < 3600) return absl::StrFormat("%dm%02ds", s / 60, s % 60);
  if (s < 86400) return absl::StrFormat("%dh%02dm", s / 3600, s / 60 % 60);
  return absl::StrFormat("%dd%02dh", s / 86400, s / 3600 % 24);
}

std::string Quantiles(double p50, double p99) {
  if (p99 <= 0) return "-";
  return absl::StrCat(ShortTime(p50), "/", ShortTime(p99));
}

// Returns the cached share of the interval in percent; "-" without a cache or without pulls.
std::string CachedPercent(const TableActivity& table) {
  const auto& s = table.info.statistics();
  if (!table.cached_share.has_value() || s.unasked_rows() + s.unchanged_rows() == 0) return "-";
  return absl::StrFormat("%.1f", 100 * *table.cached_share);
}

// Returns mean and 99th percentile of the row staleness; "-" if none was measured.
std::string RowStaleness(const TableActivity& table) {
  const auto counts = ps::RowStalenessCounts::FromProto(table.info.statistics().row_staleness());
  if (counts.rows == 0) return "-";
  return absl::StrFormat("%.2f/%d", counts.Mean(), counts.Quantile(0.99));
}

std::string Allowed(const tandem::v1::UpdateMode& mode) {
  switch (mode.kind()) {
    case tandem::v1::UpdateMode::SYNC:
      return "0";
    case tandem::v1::UpdateMode::ASYNC:
      return "any";
    default:
      return absl::StrCat(mode.staleness());
  }
}

double SortKey(const TableActivity& table, SortBy sort) {
  switch (sort) {
    case SortBy::kRows:
      return static_cast<double>(table.info.statistics().rows());
    case SortBy::kBytes:
      return static_cast<double>(table.info.statistics().bytes());
    case SortBy::kPulls:
      return table.pulls_per_s;
    case SortBy::kPushes:
      return table.pushes_per_s;
    case SortBy::kRowsPerSecond:
      return table.rows_per_s;
    case SortBy::kPullP99:
      return table.pull_p99_us;
    case SortBy::kName:
      break;
  }
  return 0;
}

void DrawServers(const Snapshot& now, const Snapshot* before, const ScreenOptions& options,
                 std::vector<std::string>* lines) {
  std::vector<std::string> names;
  size_t longest = 6;
  for (size_t s = 0; s < now.servers.size(); ++s) {
    const std::string& address = now.servers[s].address;
    names.push_back(absl::StrCat(s, " ", address.empty() ? "?" : address));
    longest = std::max(longest, names.back().size());
  }
  const Columns columns{options.columns, longest, {7, 5, 6, 6, 7, 6, 6}};
  lines->push_back(
      Coloured(columns.Heading({"SERVER", "UP", "CPU%", "RSS", "TABLES", "SOCKETS", "PARKED", "KEPT"}),
               kHeading, options.colours));
  for (size_t s = 0; s < now.servers.size(); ++s) {
    const ServerSnapshot& server = now.servers[s];
    const std::string& name = names[s];
    if (!server.status.ok()) {
      std::string line = absl::StrCat(name, "  does not answer: ", server.status.message());
      std::replace_if(
          line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
      lines->push_back(Coloured(Shortened(line, options.columns), kBad, options.colours));
      continue;
    }
    const auto& own = server.statistics;
    const ServerSnapshot* const earlier =
        before != nullptr && s < before->servers.size() ? &before->servers[s] : nullptr;
    lines->push_back(columns.Line(
        {name, Uptime(own.uptime_s()), absl::StrFormat("%.0f", 100 * ProcessorShare(server, earlier)),
         ShortNumber(static_cast<double>(own.rss_bytes())), absl::StrCat(server.tables.size()),
         absl::StrCat(own.open_sockets()), absl::StrCat(own.parked_calls()),
         ShortNumber(static_cast<double>(own.kept_bytes()))}));
  }
}

void DrawTables(const std::vector<TableActivity>& tables, const ScreenOptions& options,
                std::vector<std::string>* lines) {
  size_t longest = 5;
  for (const TableActivity& table : tables) longest = std::max(longest, table.info.config().name().size());
  const Columns load{options.columns, longest, {6, 6, 6, 6, 6, 6, 13, 13}};
  Cells heading = {"TABLE",  "ROWS",   "BYTES",        "B/ROW",       "PULL/S",
                   "PUSH/S", "ROWS/S", "PULL p50/p99", "PUSH p50/p99"};
  constexpr size_t kColumnOf[kNumSorts] = {0, 1, 2, 4, 5, 6, 7};
  std::string& sorted = heading[kColumnOf[static_cast<int>(options.sort)]];
  sorted =
      sorted.size() < 6 || sorted.size() > 6 ? absl::StrCat(sorted, options.reversed ? "^" : "v") : sorted;
  lines->push_back(Coloured(load.Heading(heading), kHeading, options.colours));
  for (const TableActivity& table : tables) {
    const auto& s = table.info.statistics();
    lines->push_back(load.Line(
        {table.info.config().name(), ShortNumber(static_cast<double>(s.rows())),
         ShortNumber(static_cast<double>(s.bytes())), absl::StrFormat("%.1f", s.bytes_per_row()),
         ShortNumber(table.pulls_per_s), ShortNumber(table.pushes_per_s), ShortNumber(table.rows_per_s),
         Quantiles(table.pull_p50_us, table.pull_p99_us), Quantiles(table.push_p50_us, table.push_p99_us)}));
  }
  // A line has 80 characters if the longest name has nine letters, such as "embedding".
  const Columns rest{options.columns, longest, {10, 16, 11, 5, 6, 5, 5, 5}};
  lines->push_back("");
  lines->push_back(Coloured(rest.Heading({"TABLE", "MODE", "STALE avg/max/ok", "ROW avg/p99", "LEFT",
                                          "CACHE%", "EVICT", "SPILL", "KEPT"}),
                            kHeading, options.colours));
  for (const TableActivity& table : tables) {
    const auto& s = table.info.statistics();
    const auto& mode = table.info.config().update_mode();
    lines->push_back(rest.Line(
        {table.info.config().name(), ps::FormatUpdateMode(mode),
         absl::StrFormat("%.2f/%d/%s", s.staleness_mean(), s.staleness_max(), Allowed(mode)),
         RowStaleness(table), ShortNumber(static_cast<double>(s.stale_pushes())), CachedPercent(table),
         ShortNumber(table.evicted_per_s), ShortNumber(static_cast<double>(s.spilled_rows())),
         ShortNumber(static_cast<double>(s.kept_pushes()))}));
  }
  lines->push_back("");
  const Columns hot{options.columns, options.columns, {}};
  lines->push_back(
      Coloured(hot.Heading({"HOTTEST IDS (share of the table's pulled rows)"}), kHeading, options.colours));
  for (const TableActivity& table : tables) {
    const auto& s = table.info.statistics();
    std::string line = absl::StrCat(table.info.config().name(), ":");
    if (s.hottest_size() == 0) absl::StrAppend(&line, " none pulled");
    for (const auto& id : s.hottest()) {
      const double share =
          s.pulled_rows() == 0 ? 0 : static_cast<double>(id.pulls()) / static_cast<double>(s.pulled_rows());
      const std::string more = absl::StrFormat("  %d (%.2f%%)", id.id(), 100 * share);
      if (line.size() + more.size() > options.columns) break;
      line += more;
    }
    lines->push_back(line.substr(0, options.columns));
  }
}

}  // namespace

std::string ShortNumber(double value) {
  if (value < 0) value = 0;
  if (value < 9.95)
    return value == std::floor(value) ? absl::StrFormat("%.0f", value) : absl::StrFormat("%.1f", value);
  if (value < 999.5) return absl::StrFormat("%.0f", value);
  const char* unit = "";
  for (const char* next : {"k", "M", "G", "T", "P", "E"}) {
    value /= 1000;
    unit = next;
    if (value < 999.5) break;
  }
  return absl::StrFormat(value < 99.95 ? "%.1f%s" : "%.0f%s", value, unit);
}

std::string ShortTime(double us) {
  if (us < 999.5) return absl::StrFormat("%.0fus", us);
  if (us < 99950) return absl::StrFormat("%.1fms", us / 1e3);
  if (us < 999500) return absl::StrFormat("%.0fms", us / 1e3);
  return us < 99.95e6 ? absl::StrFormat("%.1fs", us / 1e6) : absl::StrFormat("%.0fs", us / 1e6);
}

std::vector<std::string> DrawSnapshot(const Snapshot& now, const Snapshot* before,
                                      const ScreenOptions& options) {
  std::vector<TableActivity> tables = Activity(now, before);
  std::stable_sort(tables.begin(), tables.end(), [&](const TableActivity& a, const TableActivity& b) {
    if (options.sort == SortBy::kName) {
      const int order = a.info.config().name().compare(b.info.config().name());
      return options.reversed ? order > 0 : order < 0;
    }
    const double left = SortKey(a, options.sort), right = SortKey(b, options.sort);
    return options.reversed ? left < right : left > right;
  });
  std::vector<std::string> lines;
  DrawServers(now, before, options, &lines);
  lines.push_back("");
  if (tables.empty()) {
    lines.push_back(
        std::string(now.AnyCompleted() ? "no tables yet" : "no server answers").substr(0, options.columns));
    return lines;
  }
  DrawTables(tables, options, &lines);
  return lines;
}

}  // namespace tandem::cli
