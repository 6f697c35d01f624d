// SPDX-License-Identifier: Apache-2.0
#include "worker/job/job_errors.h"

#include <algorithm>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/suggest.h"

namespace tandem::worker {

const std::string* JobErrors::Origin(absl::string_view path) const {
  // The path itself or the nearest ancestor that an override put there.
  while (true) {
    if (auto found = origins_.find(std::string(path)); found != origins_.end()) return &found->second;
    const size_t dot = path.rfind('.');
    if (dot == absl::string_view::npos) return nullptr;
    path = path.substr(0, dot);
  }
}

void JobErrors::Add(absl::string_view path, int line, absl::string_view message) {
  if (const std::string* origin = Origin(path)) {
    // Overrides come last, in the order they were met.
    errors_.emplace_back(std::numeric_limits<int>::max(), absl::StrCat("--set ", *origin, ": ", message));
  } else if (line > 0) {
    errors_.emplace_back(line, absl::StrCat(file_name_, ":", line, ": ", message));
  } else {
    errors_.emplace_back(0, absl::StrCat(file_name_, ": ", message));
  }
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
