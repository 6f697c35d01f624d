// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_CHAIN_H_
#define TANDEM_PS_CHECKPOINT_CHAIN_H_

// Reads checkpoints that build on others. An incremental checkpoint ("delta") holds, for some or all of its
// table files, only what has changed since another checkpoint, its base, which is a directory beside it:
//
//   step-000000001000/user.0-of-1.table    complete
//   step-000000002000/user.0-of-1.table    the rows that have changed since step 1000
//   step-000000003000/user.0-of-1.table    the rows that have changed since step 2000
//
// A checkpoint and its bases are a chain. Each file names its base by directory and by save id, so that
// another checkpoint that has taken the base's name is not mistaken for it. Files of one checkpoint may
// differ: a server that was restarted writes complete files again.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/checkpoint/format.h"

namespace tandem::ps {

// The longest chain that is read. A limit protects from chains that never end.
inline constexpr int kMaxChain = 1000;

// The rows that a table file stands for, put together from the file and those that it builds on. Not
// thread-safe. Every call blocks on the disk, without a deadline.
class TableChain {
 public:
  // Opens the files that `newest` builds on; none if it is complete. `newest` must outlive the chain. Errors:
  //
  //   - DataLoss, naming both files: a base is missing, or another save or another table took its place
  //   - those of TableFileReader::Open
  static absl::StatusOr<TableChain> Open(TableFileReader* newest);

  // Returns the buckets of the newest file, in its order.
  std::vector<uint32_t> buckets() const;
  // Calls visit(id, row, history) for each row of `bucket`, which must be one of buckets(), in ascending
  // order of id, as the newest file's server had them when it wrote the file. Returns the admission counters
  // in `filter`; `whole` is true. Holds the bucket's changed rows in memory. Errors are those of
  // TableFileReader::ReadChanges; after one the caller must discard the rows that were visited.
  absl::StatusOr<BucketChanges> ReadBucket(uint32_t bucket, TableStorage::RowVisitor visit);
  // The number of files, including the newest.
  size_t size() const { return files_.size(); }

 private:
  struct File {
    TableFileReader* reader;
    std::unique_ptr<TableFileReader> owned;  // of all but the newest
    absl::flat_hash_map<uint32_t, const v1::BucketIndex*> buckets;
  };
  absl::Status Add(TableFileReader* reader, std::unique_ptr<TableFileReader> owned);

  std::vector<File> files_;  // the newest first
};

// Returns the directory that holds the checkpoint `directory` and those on which it may build.
std::string RootOfCheckpoint(const std::string& directory);

// Returns the chain of the checkpoint in `directory`: itself, then its base, and so on to one that builds on
// no other. Reads manifests only. Errors:
//
//   - those of ReadManifest for `directory`
//   - DataLoss, naming both checkpoints: the base of one is missing or damaged, or is no older checkpoint
absl::StatusOr<std::vector<CheckpointEntry>> ChainOf(const std::string& directory);

// Verifies that the files of the checkpoint in `directory` find their bases, whatever these contain; reads
// headers and footers. Use it with VerifyCheckpoint for every checkpoint of the chain. Errors are those of
// ChainOf and TableChain::Open.
absl::Status VerifyLinks(const std::string& directory);

// Makes the checkpoint in `directory` complete: reads its chain, writes complete files, and replaces the
// checkpoint, atomically as CommitCheckpoint does. Its rows, counters, clocks, fences and state stay; later
// checkpoints that build on it still do. Returns false, with nothing changed, if it is complete already.
//
// Needs disk space for the complete checkpoint, in "compacting-NAME" beside it, which an interrupted call
// leaves and the next one removes. A training run may save other checkpoints meanwhile. Aborted: the
// checkpoint has changed or disappeared meanwhile. Other errors are those of ChainOf, TableChain and
// WriteTableFile. After an error the checkpoint is as it was.
absl::StatusOr<bool> CompactCheckpoint(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_CHAIN_H_
