// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/streams.h"

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem::launcher {
namespace {

bool ParseBits(absl::string_view text, int* bits) {
  return absl::SimpleAtoi(text, bits) && *bits >= 0 && *bits <= 3;
}

}  // namespace

int StreamChoice::Of(int local_rank) const {
  const auto it = of_rank.find(local_rank);
  return it == of_rank.end() ? of_all : it->second;
}

absl::StatusOr<StreamChoice> StreamChoice::Parse(absl::string_view flag, absl::string_view text) {
  StreamChoice choice;
  if (ParseBits(text, &choice.of_all)) return choice;
  choice.of_all = kNone;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits(':', 1));
    int rank, bits;
    if (!absl::SimpleAtoi(pair.first, &rank) || rank < 0 || !ParseBits(pair.second, &bits)) {
      return absl::InvalidArgumentError(
          absl::StrCat(flag, " '", text,
                       "': expected 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or such numbers by "
                       "local rank: 0:1,1:3"));
    }
    choice.of_rank[rank] = bits;
  }
  return choice;
}

absl::StatusOr<std::optional<std::set<int>>> ParseRanksFilter(absl::string_view text) {
  if (text.empty()) return std::nullopt;
  std::set<int> ranks;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    int rank;
    if (!absl::SimpleAtoi(part, &rank) || rank < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--local-ranks-filter '", text, "': expected local ranks such as 0,2"));
    }
    ranks.insert(rank);
  }
  return std::optional<std::set<int>>(std::move(ranks));
}

}  // namespace tandem::launcher
