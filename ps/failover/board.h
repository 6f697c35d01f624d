// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_BOARD_H_
#define TANDEM_PS_FAILOVER_BOARD_H_

// Board holds the placement documents of a job: for each shard the one that names its primary and the
// followers that may take over. All copies of a shard change its document by compare-and-set.
// ps/failover/store_board.h implements it over a job's store.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

// The result of a compare-and-set. A plain value.
struct CompareAndSetResult {
  enum class Outcome {
    kDone,     // the document is now the desired one
    kChanged,  // the document was not of the expected version: it is `current`, and this call changes nothing
    kUnknown,  // nobody answered in time: the document may become the desired one now, later or never
  };
  Outcome outcome = Outcome::kUnknown;
  v1::ShardPlacement current;  // of kChanged: the document that was found; its version is 0 if there is none
  absl::Status error;          // of kUnknown: the reason, for messages
};

// Thread-safe. All calls block, so they must not run under a lock nor on a thread that answers requests.
class Board {
 public:
  virtual ~Board() = default;

  // Returns the shard's document as it is now; version 0 means that there is none. Blocks at most `timeout`.
  // Errors:
  //
  //   - Unavailable or DeadlineExceeded: the board could not be reached in time
  //   - DataLoss: the stored text is no placement document; the message names its key
  //   - Cancelled after Cancel
  virtual absl::StatusOr<v1::ShardPlacement> Read(uint32_t shard, absl::Duration timeout) = 0;

  // Replaces the shard's document by `desired` if its version is `expected_version`; 0 means that there must
  // be none. Blocks at most `timeout`. Requires desired.version() > expected_version (InvalidArgument).
  //
  // kUnknown is not settled by a later Read: the change may still be on its way. It is settled by a later
  // compare-and-set of the same caller whose outcome is kDone, because a late change then finds another
  // version. This call repeats nothing by itself that could be applied twice.
  //
  // Returns an error only if nothing was sent: InvalidArgument, Cancelled, or the errors of Read.
  virtual absl::StatusOr<CompareAndSetResult> CompareAndSet(uint32_t shard, uint64_t expected_version,
                                                            const v1::ShardPlacement& desired,
                                                            absl::Duration timeout) = 0;

  // Blocks until the shard's document has a version other than `known_version`, and returns it. Returns
  // DeadlineExceeded after `timeout`. A board over a store looks at it again and again, so a change is seen
  // within a poll interval. A board that cannot be reached is waited for until the time-out. Cancelled after
  // Cancel.
  virtual absl::StatusOr<v1::ShardPlacement> AwaitChange(uint32_t shard, uint64_t known_version,
                                                         absl::Duration timeout) = 0;

  // Returns whether the process that serves at `address` lives as far as the job's store knows: its
  // heartbeats have not been silent for longer than its lease. A process that cannot be reached from here may
  // live. Blocks at most `timeout`. Errors are those of Read, and Unimplemented if the board knows no
  // heartbeats.
  virtual absl::StatusOr<bool> IsAlive(const std::string& address, absl::Duration timeout) = 0;

  // Ends all calls, also later ones, with Cancelled. A call that waits for an answer of the store ends with
  // that answer or its time-out. Does not block.
  virtual void Cancel() = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_BOARD_H_
