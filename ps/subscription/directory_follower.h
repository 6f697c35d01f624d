// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SUBSCRIPTION_DIRECTORY_FOLLOWER_H_
#define TANDEM_PS_SUBSCRIPTION_DIRECTORY_FOLLOWER_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/subscription/row_changes.h"

namespace tandem::ps {

// Follows a directory of checkpoints that another process writes: DirectoryWriter, or a training run with
// checkpoint.deltas. Not thread-safe. Reads files only, so that any number of processes may follow.
class DirectoryFollower {
 public:
  explicit DirectoryFollower(std::string root) : root_(std::move(root)) {}

  // Calls visit(config, changes) for everything that the next checkpoints have changed, in the order in which
  // it must be applied. The first call, and one that is too far behind, gives whole buckets. Returns false if
  // there is no newer checkpoint, also if the directory does not exist yet. Blocks on the disk.
  //
  // After an error the next call gives whole buckets, so that what was visited before does no harm. DataLoss:
  // a file is damaged.
  using Visitor = absl::FunctionRef<void(const v1::TableConfig& config, const RowChanges& changes)>;
  absl::StatusOr<bool> Next(Visitor visit);

  uint64_t step() const { return step_; }  // of the last checkpoint that was read; 0: none

 private:
  using SaveIds = std::map<std::string, uint64_t>;  // of each table file
  // Visits one checkpoint: its files alone, or together with those on which they build.
  absl::Status Read(const CheckpointEntry& entry, bool with_bases, Visitor visit, SaveIds* save_ids);
  // Returns whether the files of a checkpoint build on those that were read last.
  absl::StatusOr<bool> FollowsLast(const CheckpointEntry& entry) const;

  const std::string root_;
  uint64_t step_ = 0;
  SaveIds save_ids_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SUBSCRIPTION_DIRECTORY_FOLLOWER_H_
