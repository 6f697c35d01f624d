// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_errors.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/suggest.h"
#include "base/utf8.h"

namespace tandem::worker {

void JobErrors::SetOrigin(const std::string& path, absl::string_view text) {
  // Overrides come last, in the order they were met.
  ClearOrigins(path);
  SetOrigin(
      path,
      {.name = absl::StrCat("--set ", text), .order = std::numeric_limits<int>::max(), .has_lines = false});
}

void JobErrors::ClearOrigins(const std::string& path) {
  std::erase_if(origins_, [&](const auto& entry) {
    return entry.first == path || absl::StartsWith(entry.first, absl::StrCat(path, "."));
  });
}

const JobOrigin* JobErrors::FindOrigin(const std::string& path) const {
  const auto found = origins_.find(path);
  return found == origins_.end() ? nullptr : &found->second;
}

const JobOrigin& JobErrors::OriginOf(absl::string_view path) const {
  while (true) {
    if (const JobOrigin* origin = FindOrigin(std::string(path))) return *origin;
    const size_t dot = path.rfind('.');
    if (dot == absl::string_view::npos) return file_;
    path = path.substr(0, dot);
  }
}

void JobErrors::AddTo(const JobOrigin& origin, int line, absl::string_view message) {
  if (!origin.has_lines) line = 0;
  const std::string place = line > 0 ? absl::StrCat(origin.name, ":", line) : origin.name;
  errors_.push_back({{origin.order, line}, Printable(absl::StrCat(place, ": ", message))});
}

void JobErrors::Add(absl::string_view path, int line, absl::string_view message) {
  AddTo(OriginOf(path), line, message);
}

absl::Status JobErrors::ToStatus() const {
  if (errors_.empty()) return absl::OkStatus();
  auto sorted = errors_;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  return absl::InvalidArgumentError(absl::StrJoin(
      sorted, "\n", [](std::string* out, const auto& error) { absl::StrAppend(out, error.second); }));
}

std::string Suggestion(absl::string_view written, const std::vector<std::string>& candidates) {
  const std::string lower = absl::AsciiStrToLower(written);
  absl::string_view nearest =
      ClosestName(lower, std::vector<absl::string_view>(candidates.begin(), candidates.end()));
  for (const std::string& candidate : candidates) {
    // "warmup" for "warmup_steps" takes many edits, but is clear.
    if (!nearest.empty() || lower.size() < 3) break;
    if (absl::StartsWith(candidate, lower) || absl::StartsWith(lower, candidate)) nearest = candidate;
  }
  return nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?");
}

}  // namespace tandem::worker
