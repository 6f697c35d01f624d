// SPDX-License-Identifier: Apache-2.0
#include "replay/staleness/version_clock.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem::replay {

absl::Status VersionClock::Commit(const CommittedVersion& next, uint64_t* sampled,
                                  uint64_t items_per_commit) {
  const CommittedVersion& head = state_.head;
  if (state_.commits > 0) {
    if (next == head) return absl::OkStatus();
    if (next.epoch < head.epoch || next.version <= head.version) {
      return absl::FailedPreconditionError(
          absl::StrCat("version ", next.version, " of epoch ", next.epoch, " cannot follow version ",
                       head.version, " of epoch ", head.epoch,
                       next.epoch < head.epoch ? ": another learner has taken over; end this one"
                                               : ": publish a version above it"));
    }
    if (next.epoch == head.epoch && next.items_consumed < head.items_consumed) {
      return absl::InvalidArgumentError(absl::StrCat(
          "version ", next.version, " has ", next.items_consumed, " items consumed, and version ",
          head.version, " had ", head.items_consumed,
          ": items_consumed counts over the whole run; a learner that resumes needs a new epoch"));
    }
  }
  if (state_.commits > 0 && next.epoch == head.epoch) {
    state_.consumed += next.items_consumed - head.items_consumed;
    *sampled = std::max(*sampled, state_.consumed);
  } else {
    state_.consumed = *sampled;
  }
  uint64_t missed = 0;
  if (state_.commits > 0 && items_per_commit > 0 && next.items_consumed > head.items_consumed) {
    missed = (next.items_consumed - head.items_consumed) / items_per_commit;
    // One of them is this commit, unless it is the first of its epoch, which has no items of its own.
    if (missed > 0 && next.epoch == head.epoch) --missed;
  }
  state_.commits += 1 + missed;
  state_.head = next;
  return absl::OkStatus();
}

}  // namespace tandem::replay
