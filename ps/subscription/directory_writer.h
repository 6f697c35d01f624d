// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SUBSCRIPTION_DIRECTORY_WRITER_H_
#define TANDEM_PS_SUBSCRIPTION_DIRECTORY_WRITER_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/subscription/bucket_edits.h"
#include "ps/subscription/subscription.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

// Writes what a subscription gives to a directory, as checkpoints (ps/checkpoint/chain.h): one that is
// complete, then one after the other that holds what has changed since. They have no optimizer state. Their
// `step` counts them.
//
// A checkpoint is committed atomically together with the subscription's position. A process that dies loses
// what it had not committed, and gets it again from the servers. Not thread-safe; one process at a time may
// write to a directory.
class DirectoryWriter {
 public:
  struct Options {
    // Readers that are fewer checkpoints behind need not read everything again. An older one is made complete
    // once in as many, and those before it are removed.
    int deltas = 100;
  };
  // Continues in `root`, which is created if it is missing. FailedPrecondition: the newest checkpoint there
  // was not written by a subscription. Other errors are those of the checkpoint's files.
  static absl::StatusOr<std::unique_ptr<DirectoryWriter>> Open(const std::string& root,
                                                               const Options& options);

  // Returns the position with which the subscription must be opened; empty: from the beginning.
  const std::string& position() const { return position_; }

  // Adds changes to the next checkpoint, which is held in memory until Commit. InvalidArgument: the changes
  // do not belong to the tables that are known.
  absl::Status Add(ChangeBatch batch);
  bool has_changes() const { return has_changes_; }
  // Writes what was added as a checkpoint and returns its path. `position` is that of the subscription. To be
  // called when the subscription has caught up. Blocks on the disk. After an error, such as ResourceExhausted
  // if the disk is full, nothing is lost: the call may be repeated.
  absl::StatusOr<std::string> Commit(const std::string& position);

 private:
  struct Table {
    v1::TableConfig config;
    uint64_t save_id = 0;  // of the table's file in the last checkpoint; 0: none
    std::map<uint32_t, BucketEdits> buckets;
  };

  DirectoryWriter(std::string root, const Options& options) : root_(std::move(root)), options_(options) {}
  // Makes an older checkpoint complete and removes those before it, once there are many.
  absl::Status Compact() const;

  const std::string root_;
  const Options options_;
  const std::atomic<bool> cancel_{false};
  uint64_t step_ = 0;  // of the last checkpoint
  uint32_t num_buckets_ = 0;
  std::string position_;
  std::map<std::string, Table> tables_;
  bool has_changes_ = false;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SUBSCRIPTION_DIRECTORY_WRITER_H_
