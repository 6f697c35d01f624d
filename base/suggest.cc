// SPDX-License-Identifier: Apache-2.0
#include "base/suggest.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem {
namespace {

// Optimal string alignment distance: insertions, deletions, replacements and swaps of adjacent letters.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

}  // namespace

absl::string_view ClosestName(absl::string_view name, absl::Span<const absl::string_view> known) {
  // A longer name is not a misspelling and is not compared.
  constexpr size_t kLongestName = 128;
  if (name.size() > kLongestName) return "";
  absl::string_view best;
  size_t best_distance = ~size_t{0};
  for (absl::string_view candidate : known) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance && distance * 3 <= std::max(name.size(), candidate.size())) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string DidYouMean(absl::string_view name, absl::Span<const absl::string_view> known) {
  const absl::string_view closest = ClosestName(name, known);
  return absl::StrCat(" (", closest.empty() ? "" : absl::StrCat("did you mean '", closest, "'? "),
                      "known: ", absl::StrJoin(known, ", "), ")");
}

}  // namespace tandem
