// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_OVERWRITE_H_
#define TANDEM_PS_CHECKPOINT_OVERWRITE_H_

// Lets a new run replace the checkpoints of another one in the same directory, in one moment: when the first
// checkpoint of the new run is committed. Until then the directory holds the old run; from then on it holds
// the new one, also for readers, and if the process dies before the old checkpoints are removed.
//
//   BeginOverwrite(root, {.run_id = "new"});  // writes root/OVERWRITE
//   CommitCheckpoint(...);                      // manifest.run_id is "new": the old checkpoints are not
//   listed now FinishOverwrite(root);                    // removes them, and OVERWRITE
//
// The functions keep no state and block on the disk. Only the process that writes the checkpoints may call
// BeginOverwrite, FinishOverwrite and AbandonOverwrite. Errors name the path.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ps/checkpoint/checkpoint_dir.h"

namespace tandem::ps {

struct Overwrite {
  std::string run_id;  // of the new run; without white space
  // The new run continues the checkpoint of this step: that one and those before it stay and get the new run
  // id.
  absl::optional<uint64_t> kept_step;
};

// Announces that a run overwrites another one; replaces an earlier announcement.
absl::Status BeginOverwrite(const std::string& root, const Overwrite& overwrite);
// Removes what the new run replaces, if it has committed a checkpoint. Returns the number of removed
// checkpoints, 0 if there is no announcement or no checkpoint of the new run yet. May be repeated after an
// error.
absl::StatusOr<int> FinishOverwrite(const std::string& root);
// Withdraws the announcement. To be called before a run starts, after FinishOverwrite.
absl::Status AbandonOverwrite(const std::string& root);
// Removes from `entries`, the committed checkpoints under `root`, those that a new run has replaced.
absl::Status HideOverwritten(const std::string& root, std::vector<CheckpointEntry>* entries);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_OVERWRITE_H_
