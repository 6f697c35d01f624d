// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_STALENESS_VERSION_CLOCK_H_
#define TANDEM_REPLAY_STALENESS_VERSION_CLOCK_H_

#include <cstdint>

#include "absl/status/status.h"

namespace tandem::replay {

// A version of the policy that actors can pull. A plain value.
struct CommittedVersion {
  uint64_t epoch = 0;  // grows with each start of the learner, or of the group of learners
  int64_t version = 0;
  // How many sampled items of the table the learners were done with when they published this version: those
  // that updates had used, and those that they had rejected. Counts over the whole run: a learner that
  // resumes goes on from the count in its checkpoint.
  uint64_t items_consumed = 0;

  friend bool operator==(const CommittedVersion&, const CommittedVersion&) = default;
};

// The versions that learners have committed to a table. Not thread-safe.
//
// A position is the number of items that have been sampled from the table before an item. Counts of
// learners are translated to positions: a learner that resumes starts from an earlier count than the table.
class VersionClock {
 public:
  // The state, for a checkpoint.
  struct State {
    uint64_t commits = 0;
    CommittedVersion head;
    uint64_t consumed = 0;
  };

  // Records a commit. `sampled` is the number of items sampled so far; it is raised if the learner has
  // consumed more than that, which a table does not know that was restored from an older checkpoint. In a new
  // epoch all items sampled before the commit count as consumed: they were lost with the earlier learner.
  // Repeating the last commit has no effect.
  //
  // A table that was restored from an older checkpoint has missed commits. The items consumed since the head
  // tell how many: one for each `items_per_commit`; 0: each call counts as one commit.
  //
  // Errors, which name the head and change nothing:
  //
  // - FailedPrecondition: an older epoch, or a version that is not above the head's.
  // - InvalidArgument: fewer items consumed than at the head, in the same epoch.
  absl::Status Commit(const CommittedVersion& next, uint64_t* sampled, uint64_t items_per_commit = 0);

  // Returns how many commits there have been; 0: head() has no meaning.
  uint64_t commits() const { return state_.commits; }
  const CommittedVersion& head() const { return state_.head; }
  // Returns the position up to which items had been consumed at the head.
  uint64_t consumed() const { return state_.consumed; }
  const State& state() const { return state_; }
  void Restore(const State& state) { state_ = state; }

 private:
  State state_;
};

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_STALENESS_VERSION_CLOCK_H_
