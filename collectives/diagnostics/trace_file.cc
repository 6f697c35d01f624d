// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/trace_file.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/read_file.h"
#include "nlohmann/json.hpp"

namespace tandem::collectives {
namespace {

using Json = nlohmann::json;

constexpr int kFormat = 1;
constexpr size_t kMaxBytes = 256 << 20;
constexpr size_t kMaxRanks = 1 << 20;

// Returns the field, or `otherwise` if there is none; throws if it has another type.
template <typename T>
T Field(const Json& object, const char* name, T otherwise) {
  const auto found = object.find(name);
  return found == object.end() ? otherwise : found->get<T>();
}

TraceGroup ParseGroup(const Json& json) {
  TraceGroup group;
  group.number = json.at("number").get<uint32_t>();
  group.name = json.at("name").get<std::string>();
  group.backend = Field<std::string>(json, "backend", "");
  group.rank = Field<int>(json, "rank", 0);
  group.global_ranks = json.at("global_ranks").get<std::vector<int>>();
  group.closed = Field<bool>(json, "closed", false);
  if (const auto collective = json.find("collective"); collective != json.end()) {
    group.last_issued = Field<int64_t>(*collective, "last_issued", -1);
    group.last_completed = Field<int64_t>(*collective, "last_completed", -1);
  }
  return group;
}

TraceEntry ParseEntry(const Json& json) {
  TraceEntry entry;
  entry.group = json.at("group").get<uint32_t>();
  entry.sequence = json.at("sequence").get<uint64_t>();
  entry.point_to_point = Field<bool>(json, "point_to_point", false);
  entry.op = json.at("op").get<std::string>();
  entry.dtype = Field<std::string>(json, "dtype", "");
  entry.reduce = Field<std::string>(json, "reduce", "");
  entry.count = Field<uint64_t>(json, "count", 0);
  entry.even = Field<bool>(json, "even", true);
  entry.parts_hash = Field<uint64_t>(json, "parts_hash", 0);
  entry.root = Field<int64_t>(json, entry.point_to_point ? "peer" : "root", 0);
  entry.tag = Field<uint64_t>(json, "tag", 0);
  entry.state = json.at("state").get<std::string>();
  entry.ended_unix_us = Field<int64_t>(json, "ended_unix_us", 0);
  entry.duration_us = Field<double>(json, "duration_us", 0);
  entry.error = Field<std::string>(json, "error", "");
  entry.description = Field<std::string>(json, "description", entry.op);
  return entry;
}

// Rings lose entries: the remaining entries give a lower bound of the progress.
void RaiseCounters(const std::vector<TraceEntry>& entries, std::vector<TraceGroup>* groups) {
  for (const TraceEntry& entry : entries) {
    if (entry.point_to_point) continue;
    for (TraceGroup& group : *groups) {
      if (group.number != entry.group) continue;
      const int64_t sequence = static_cast<int64_t>(entry.sequence);
      group.last_issued = std::max(group.last_issued, sequence);
      if (entry.completed()) group.last_completed = std::max(group.last_completed, sequence);
    }
  }
}

}  // namespace

absl::StatusOr<Trace> ParseTrace(absl::string_view text) {
  const Json json = ParseJson(text);
  if (json.is_discarded()) {
    return absl::InvalidArgumentError("is not whole (no JSON): cut off while it was written or copied?");
  }
  if (!json.is_object() || !json.contains("tandem_trace")) {
    return absl::InvalidArgumentError("is no trace of Tandem");
  }
  try {
    if (const int format = json.at("tandem_trace").get<int>(); format != kFormat) {
      return absl::InvalidArgumentError(
          absl::StrCat("has format ", format, ", this program reads ", kFormat));
    }
    Trace trace;
    trace.rank = json.at("rank").get<int>();
    trace.pid = Field<int64_t>(json, "pid", 0);
    trace.host = Field<std::string>(json, "host", "");
    trace.reason = Field<std::string>(json, "reason", "");
    trace.dumped_unix_us = Field<int64_t>(json, "dumped_unix_us", 0);
    for (const Json& group : json.at("groups")) {
      trace.groups.push_back(ParseGroup(group));
      if (trace.groups.back().global_ranks.size() > kMaxRanks) {
        return absl::InvalidArgumentError("has a group of more than a million ranks");
      }
    }
    for (const Json& entry : json.at("entries")) trace.entries.push_back(ParseEntry(entry));
    RaiseCounters(trace.entries, &trace.groups);
    return trace;
  } catch (const Json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("is no trace that can be understood: ", e.what()));
  }
}

absl::StatusOr<TraceDirectory> ReadTraces(const std::string& directory) {
  std::error_code error;
  if (!std::filesystem::is_directory(directory, error)) {
    return absl::NotFoundError(absl::StrCat("there is no directory '", directory, "'"));
  }
  std::vector<std::filesystem::path> paths;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    paths.push_back(it->path());
  }
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot list the directory '", directory, "': ", error.message()));
  }
  std::sort(paths.begin(), paths.end());

  TraceDirectory result;
  std::map<int, Trace> newest;
  for (const std::filesystem::path& path : paths) {
    const std::string file = path.filename();
    const auto skip = [&](absl::string_view why) { result.not_read.push_back({file, std::string(why)}); };
    if (!std::filesystem::is_regular_file(path, error)) continue;
    if (!absl::EndsWith(file, ".json")) {
      skip(absl::EndsWith(file, ".json.tmp") ? "a dump that was never finished" : "is no trace of Tandem");
      continue;
    }
    const absl::StatusOr<std::string> text = ReadFile(path.string(), kMaxBytes);
    if (!text.ok()) {
      skip(absl::IsOutOfRange(text.status()) ? "is larger than any trace (256 MiB)"
                                             : text.status().message());
      continue;
    }
    absl::StatusOr<Trace> trace = ParseTrace(*text);
    if (!trace.ok()) {
      skip(trace.status().message());
      continue;
    }
    trace->file = file;
    const auto [place, first] = newest.try_emplace(trace->rank, *trace);
    if (first) continue;
    Trace older = *std::move(trace);
    if (older.dumped_unix_us > place->second.dumped_unix_us) std::swap(older, place->second);
    result.not_read.push_back(
        {older.file, absl::StrCat("rank ", older.rank, " has left a newer one, ", place->second.file)});
  }
  for (auto& [rank, trace] : newest) result.traces.push_back(std::move(trace));
  if (result.traces.empty()) {
    std::string text = absl::StrCat("'", directory,
                                    "' holds no trace (tandem-trace-rank*.json; a program "
                                    "writes them where TANDEM_TRACE_DIR says)");
    for (const TraceDirectory::NotRead& one : result.not_read) {
      absl::StrAppend(&text, "; ", one.file, " ", one.why);
    }
    return absl::NotFoundError(text);
  }
  return result;
}

}  // namespace tandem::collectives
