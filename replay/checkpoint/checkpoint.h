// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_REPLAY_CHECKPOINT_CHECKPOINT_H_
#define TANDEM_REPLAY_CHECKPOINT_CHECKPOINT_H_

// Checkpoints of replay tables. A checkpoint is a directory that is committed by a rename:
//
//   root/replay-000000000007/
//     MANIFEST     ReplayCheckpointManifest as protobuf text, then a line with its CRC-32; written last
//     CHUNKS       for each chunk: u64 bytes, u32 steps, u32 CRC-32 of its values; then the values.
//     Little-endian. TABLE-0 ...  for each table a ReplayTableCheckpoint
//
// The functions keep no state and block on the disk. One process at a time may write below a root. Errors
// name the path.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/checksummed_file.h"
#include "replay/chunks/chunk.h"
#include "replay/table/table.h"
#include "tandem/v1/replay.pb.h"

namespace tandem::replay {

namespace v1 = ::tandem::v1;

// A table as it is saved.
struct SavedTable {
  TableSnapshot snapshot;
  std::vector<v1::ReplayWriterFence> fences;
  uint64_t lost_items = 0;
};

// A checkpoint that was written.
struct WrittenCheckpoint {
  std::string directory;
  uint64_t items = 0;
  uint64_t bytes = 0;  // of all files
};

// Writes the tables to a new directory below `root`, which is created if necessary, commits it, and removes
// all but the newest `keep` checkpoints, and unfinished ones. After an error nothing has changed but for an
// unfinished directory, which the next call removes. `open` opens files; tests pass one that fails.
absl::StatusOr<WrittenCheckpoint> WriteCheckpoint(const std::string& root,
                                                  absl::Span<const SavedTable> tables, uint32_t keep = 2,
                                                  const OpenFile& open = OpenPosixFile);

// Returns the directory of the newest committed checkpoint below `root`. NotFound if there is none.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);

// Turns a new chunk into a shared one.
using ShareChunk = std::function<std::shared_ptr<const Chunk>(std::unique_ptr<const Chunk>)>;

// Reads a committed checkpoint. Keys of items that were inserted after it are not used again: serial numbers
// go on with a gap. Errors:
//
//   - DataLoss, naming file and byte: a file is damaged, missing or has another size
//   - FailedPrecondition: the format is newer than this program
//   - otherwise the system's, when a file cannot be read
absl::StatusOr<std::vector<SavedTable>> ReadCheckpoint(const std::string& directory, const ShareChunk& share);

}  // namespace tandem::replay

#endif  // TANDEM_REPLAY_CHECKPOINT_CHECKPOINT_H_
