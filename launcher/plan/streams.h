#ifndef TANDEM_LAUNCHER_PLAN_STREAMS_H_
#define TANDEM_LAUNCHER_PLAN_STREAMS_H_

// Which output streams of which workers something is about, in torchrun's words.

#include <map>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::launcher {

// A plain value.
struct StreamChoice {
  enum Bits { kNone = 0, kOut = 1, kErr = 2 };

  int of_all = kNone;          // those that are not in `of_rank`
  std::map<int, int> of_rank;  // by local rank

  int Of(int local_rank) const;
  // "3" (0 none, 1 stdout, 2 stderr, 3 both; of all), or "0:1,1:2" (by local rank; of others none).
  // InvalidArgument quotes the text.
  static absl::StatusOr<StreamChoice> Parse(absl::string_view flag, absl::string_view text);
};

// "0,2": local ranks; nothing given: all. InvalidArgument quotes the text.
absl::StatusOr<std::optional<std::set<int>>> ParseRanksFilter(absl::string_view text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_STREAMS_H_
