// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_STALENESS_STALENESS_OPTIONS_H_
#define TANDEM_REPLAY_STALENESS_STALENESS_OPTIONS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::replay {

// How a table bounds the lag of its items: how many versions of the policy the learner has committed between
// an item's oldest step and the update that the item is used in. The numbers are sent between processes: new
// ones may be added.
enum class StalenessKind : uint8_t {
  kNone = 0,  // not at all; the lag is measured
  kPace,      // rollouts are admitted at the pace at which the learner consumes items
  kEvict,     // a commit removes the items whose lag exceeds max_lag
};

// A rollout may take so long that its item would exceed max_lag. A table with kPace then does one of these.
enum class SlowRollouts : uint8_t {
  kWait = 0,  // samples wait for it, so that no item exceeds max_lag
  kTake,      // its item is sampled, however old
  kDrop,      // its item is removed unsampled
};

// A plain value.
struct StalenessOptions {
  StalenessKind kind = StalenessKind::kNone;
  uint32_t max_lag = 1;  // in commits (kPace) or versions (kEvict)

  // The following are for kPace. The learners consume `batch` items in one update, all learners together, and
  // commit a version after every `every` updates.
  uint32_t batch = 1;
  uint32_t every = 1;
  SlowRollouts slow = SlowRollouts::kWait;
  // A ticket ends when its lease is not renewed for so long, or max_rollout after it was granted.
  absl::Duration lease = absl::Seconds(30);
  absl::Duration max_rollout = absl::Minutes(10);

  // Returns the largest number of rollouts and items that are admitted and not consumed yet.
  uint64_t window() const { return (uint64_t{max_lag} + 1) * batch * every; }

  friend bool operator==(const StalenessOptions&, const StalenessOptions&) = default;
};

// Returns "none", "pace", "evict"; "unknown staleness" for a number that is not a StalenessKind.
absl::string_view Name(StalenessKind kind);
// Returns "wait", "take", "drop"; "unknown" for another number.
absl::string_view Name(SlowRollouts slow);
// Returns the value with this name. InvalidArgument, which lists the names, if there is none.
absl::StatusOr<SlowRollouts> ParseSlowRollouts(absl::string_view name);
// InvalidArgument, which names the option: an option is out of range.
absl::Status CheckStaleness(const StalenessOptions& options);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_STALENESS_STALENESS_OPTIONS_H_
