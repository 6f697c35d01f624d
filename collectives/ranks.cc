// SPDX-License-Identifier: Apache-2.0
#include "collectives/ranks.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tandem::collectives {

std::string NameRanks(absl::Span<const int> ranks) {
  if (ranks.size() == 1) return absl::StrCat("rank ", ranks[0]);
  if (ranks.empty()) return "no rank";
  return absl::StrCat("ranks ", absl::StrJoin(ranks.subspan(0, ranks.size() - 1), ", "), " and ",
                      ranks.back());
}

}  // namespace tandem::collectives
