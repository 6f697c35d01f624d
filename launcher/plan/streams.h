// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_STREAMS_H_
#define TANDEM_LAUNCHER_PLAN_STREAMS_H_

// Parses torchrun's flags that choose output streams of workers (--redirects, --tee, --local-ranks-filter).

#include <map>
#include <optional>
#include <set>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::launcher {

// The chosen streams of each worker: an OR of Bits. A plain value.
struct StreamChoice {
  enum Bits { kNone = 0, kOut = 1, kErr = 2 };

  int of_all = kNone;          // for workers that are not in `of_rank`
  std::map<int, int> of_rank;  // by local rank

  // Returns the chosen streams of the worker `local_rank`.
  int Of(int local_rank) const;
  // Parses the value of `flag`: one number for all workers (0 none, 1 stdout, 2 stderr, 3 both), or numbers
  // by local rank, such as "0:1,1:2", where other workers have none. Returns InvalidArgument, which quotes
  // the text, for anything else.
  static absl::StatusOr<StreamChoice> Parse(absl::string_view flag, absl::string_view text);
};

// Parses the value of --local-ranks-filter: local ranks, such as "0,2". Returns nullopt, which means all, for
// "", and InvalidArgument, which quotes the text, for anything else.
absl::StatusOr<std::optional<std::set<int>>> ParseRanksFilter(absl::string_view text);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_STREAMS_H_
