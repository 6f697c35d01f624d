// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_
#define TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_

// Functions that write, list and read checkpoints. A checkpoint is a directory, which is committed
// atomically:
//
//   auto unfinished = BeginCheckpoint(root, step);        // root/unfinished-step-000000001234
//   client->SaveCheckpoint(*unfinished);                  // each server writes its table files there
//   WriteDenseState(*unfinished, dense);                  // the workers' own part
//   auto path = CommitCheckpoint(*unfinished, manifest);  // root/step-000000001234
//
// One process, rank 0, does this for the whole job. A checkpoint that is not committed is never listed, and
// the next BeginCheckpoint removes it. A committed checkpoint contains:
//
//   step-000000001234/
//     MANIFEST            CheckpointManifest as protobuf text, then a line with its CRC-32; written last
//     DENSE               the workers' part (WriteDenseState)
//     user.0-of-2.table   one file for each table and server (ps/checkpoint/format.h)
//
// The functions keep no state and block on the disk. At most one process may write under a root at a time;
// any number may read. Errors name the path.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

inline constexpr uint32_t kCheckpointFormatVersion = 1;

// A committed checkpoint.
struct CheckpointEntry {
  std::string path;
  uint64_t step = 0;
  v1::CheckpointManifest manifest;
};

// Returns the directory name of a step's checkpoint, such as "step-000000001234".
std::string CheckpointName(uint64_t step);

// Creates `root` if necessary, removes all unfinished checkpoints under it, and returns the path of a new
// directory to write to.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, uint64_t step);
// Commits the checkpoint in the directory `unfinished`, which BeginCheckpoint returned:
//
//   1. It fills in the manifest's `format_version` and its `files`, with the size and CRC of each file.
//   2. It writes MANIFEST and makes everything durable.
//   3. It renames the directory to its final name. A checkpoint of that name is replaced, atomically if the
//      file system can exchange two directories.
//
// Returns the final path. After an error nothing is committed.
absl::StatusOr<std::string> CommitCheckpoint(const std::string& unfinished, v1::CheckpointManifest manifest);

// Returns the committed checkpoints under `root`, lowest step first. Returns none if `root` does not exist.
// Omits directories whose MANIFEST cannot be read.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& root);
// Returns the path of the checkpoint with the highest step. NotFound, naming `root`: there is none.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);
// Reads the manifest of the checkpoint in `directory`. Errors:
//
//   - NotFound: there is no MANIFEST, so the directory is no checkpoint or an unfinished one;
//   - DataLoss: MANIFEST is damaged;
//   - FailedPrecondition: the format is newer than this program.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& directory);
// Reads every file of the checkpoint. DataLoss names the first file whose size or CRC differs from the
// manifest.
absl::Status VerifyCheckpoint(const std::string& directory);
// Removes all but the `keep` checkpoints with the highest steps. Never removes the checkpoint whose path is
// `protect`, which may be empty.
absl::Status PruneCheckpoints(const std::string& root, int keep, const std::string& protect);

// Write and read the file DENSE, which consists of: magic "TANDEMD1" | u32 bytes of the protobuf |
// DenseState, protobuf | u32 CRC-32 of everything before. Reading a damaged file returns DataLoss.
absl::Status WriteDenseState(const std::string& directory, const v1::DenseState& state);
absl::StatusOr<v1::DenseState> ReadDenseState(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_
