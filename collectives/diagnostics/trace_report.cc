// SPDX-License-Identifier: Apache-2.0
// Formats an analysis as text and as JSON.

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "collectives/diagnostics/trace_analysis.h"
#include "collectives/ranks.h"
#include "nlohmann/json.hpp"

namespace tandem::collectives {
namespace {

using OrderedJson = nlohmann::ordered_json;

absl::string_view Name(TraceFinding::Kind kind) {
  switch (kind) {
    case TraceFinding::Kind::kDisagree:
      return "disagree";
    case TraceFinding::Kind::kBehind:
      return "behind";
    case TraceFinding::Kind::kCircle:
      return "circle";
    case TraceFinding::Kind::kDead:
      return "no_dump";
    case TraceFinding::Kind::kSlow:
      return "slow";
    case TraceFinding::Kind::kStuck:
      return "stuck";
    case TraceFinding::Kind::kMessage:
      return "message";
  }
  return "unknown";
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> width;
  for (const auto& row : rows) {
    width.resize(std::max(width.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&line, row[i], std::string(width[i] - row[i].size() + 2, ' '));
    }
    line.erase(line.find_last_not_of(' ') + 1);
    absl::StrAppend(&text, "  ", line, "\n");
  }
  return text;
}

// Returns the ranks of a group that have left no dump.
std::vector<int> Missing(const TraceAnalysis& analysis) {
  std::set<int> missing;
  for (const TraceAnalysis::Row& row : analysis.rows) {
    if (!row.has_dump) missing.insert(row.rank);
  }
  return std::vector<int>(missing.begin(), missing.end());
}

}  // namespace

std::string TraceText(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis) {
  const size_t dumps = directory.traces.size();
  std::string text = absl::StrCat("Dumps of ", dumps, dumps == 1 ? " rank" : " ranks", " in ", path);
  const std::vector<int> missing = Missing(analysis);
  absl::StrAppend(&text, missing.empty() ? "" : absl::StrCat("; none of ", NameRanks(missing)), "\n\n");
  if (analysis.findings.empty()) {
    absl::StrAppend(&text, "No rank is behind: everything that was begun is completed.\n");
  }
  for (const TraceFinding& finding : analysis.findings) absl::StrAppend(&text, finding.text, "\n");

  std::vector<std::vector<std::string>> rows = {{"rank", "group", "backend", "completed", "now", "for"}};
  for (const TraceAnalysis::Row& row : analysis.rows) {
    rows.push_back({absl::StrCat(row.rank), row.group, row.backend,
                    row.last_completed < 0 ? "-" : absl::StrCat("#", row.last_completed),
                    !row.has_dump     ? "no dump"
                    : row.now.empty() ? "-"
                                      : row.now,
                    row.now.empty() ? "" : DurationText(row.now_us)});
  }
  absl::StrAppend(&text, "\n", Table(rows));

  rows = {{"rank", "host", "pid", "dumped", "because"}};
  for (const Trace& trace : directory.traces) {
    rows.push_back(
        {absl::StrCat(trace.rank), trace.host, absl::StrCat(trace.pid),
         absl::FormatTime("%H:%M:%E3S", absl::FromUnixMicros(trace.dumped_unix_us), absl::LocalTimeZone()),
         trace.reason});
  }
  absl::StrAppend(&text, "\n", Table(rows));
  for (const TraceAnalysis::Row& row : analysis.rows) {
    if (!row.error.empty()) {
      absl::StrAppend(&text, "\nrank ", row.rank, ", group '", row.group, "': ", row.error);
    }
  }
  if (text.back() != '\n') absl::StrAppend(&text, "\n");
  for (const TraceDirectory::NotRead& one : directory.not_read) {
    absl::StrAppend(&text, "\nnot read: ", one.file, ": ", one.why);
  }
  if (text.back() != '\n') absl::StrAppend(&text, "\n");
  return text;
}

std::string TraceJson(const std::string& path, const TraceDirectory& directory,
                      const TraceAnalysis& analysis) {
  OrderedJson json = {{"directory", path}, {"missing", Missing(analysis)}};
  for (const char* list : {"findings", "ranks", "dumps", "not_read"}) json[list] = OrderedJson::array();
  for (const TraceFinding& finding : analysis.findings) {
    json["findings"].push_back({{"kind", std::string(Name(finding.kind))},
                                {"group", finding.group},
                                {"ranks", finding.ranks},
                                {"waiting", finding.waiting},
                                {"sequence", finding.sequence},
                                {"operation", finding.operation},
                                {"text", finding.text}});
  }
  for (const TraceAnalysis::Row& row : analysis.rows) {
    json["ranks"].push_back({{"rank", row.rank},
                             {"group", row.group},
                             {"backend", row.backend},
                             {"has_dump", row.has_dump},
                             {"last_completed", row.last_completed},
                             {"now", row.now},
                             {"now_us", row.now_us},
                             {"error", row.error}});
  }
  for (const Trace& trace : directory.traces) {
    json["dumps"].push_back({{"rank", trace.rank},
                             {"file", trace.file},
                             {"host", trace.host},
                             {"pid", trace.pid},
                             {"reason", trace.reason},
                             {"dumped_unix_us", trace.dumped_unix_us}});
  }
  for (const TraceDirectory::NotRead& one : directory.not_read) {
    json["not_read"].push_back({{"file", one.file}, {"why", one.why}});
  }
  return json.dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

}  // namespace tandem::collectives
