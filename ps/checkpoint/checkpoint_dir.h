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
// The functions keep no state and block on the disk. At most one thread of one process may call
// BeginCheckpoint, CommitCheckpoint and PruneCheckpoints for a root at a time; any number may read. Errors
// name the path. Errors of the file system have the code of absl::ErrnoToStatus.

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
  std::string path;   // root/step-000000001234
  uint64_t step = 0;  // from the directory's name; CommitCheckpoint does not compare it with manifest.step
  v1::CheckpointManifest manifest;
};

// Returns the directory name of a step's checkpoint, such as "step-000000001234".
std::string CheckpointName(uint64_t step);

// Creates `root` if necessary, removes all unfinished checkpoints under it, and returns the path of a new
// directory to write to. A committed checkpoint of the same step stays until CommitCheckpoint replaces it.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, uint64_t step);
// Commits the checkpoint in the directory `unfinished`, which BeginCheckpoint returned:
//
//   1. It fills in the manifest's `format_version` and its `files`, with the size and CRC of each file. All
//      other fields, including `step`, are the caller's.
//   2. It writes MANIFEST, and makes it and the directory durable. Functions that write the other files, such
//      as WriteTableFile and WriteDenseState, have made these durable already.
//   3. It renames the directory to its final name. A checkpoint of that name is replaced and removed.
//
// Replacement is atomic if the file system can exchange two directories. Otherwise a crash or an error
// between the renames leaves no checkpoint of this step.
//
// Returns the final path. InvalidArgument: `unfinished` is not a path that BeginCheckpoint returns. An error
// of step 1 or 2 commits nothing, and the call may be repeated. If it fails after the rename, because `root`
// cannot be synced or the replaced checkpoint cannot be removed, the checkpoint is committed all the same.
absl::StatusOr<std::string> CommitCheckpoint(const std::string& unfinished, v1::CheckpointManifest manifest);

// Returns the committed checkpoints under `root`, lowest step first. Returns none if `root` does not exist or
// cannot be accessed. Omits directories for which ReadManifest fails, also those of a newer format. Does not
// read the other files.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& root);
// Returns the path of the last checkpoint of ListCheckpoints: the one with the highest step whose MANIFEST
// can be read. NotFound, naming `root`: there is none.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);
// Reads the manifest of the checkpoint in `directory`. Errors:
//
//   - NotFound: there is no MANIFEST, so the directory is no checkpoint or an unfinished one;
//   - DataLoss: MANIFEST is damaged;
//   - FailedPrecondition: the format is newer than this program.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& directory);
// Reads every file of the checkpoint and compares it with the manifest. Errors:
//
//   - those of ReadManifest;
//   - NotFound: a file that the manifest lists is missing;
//   - DataLoss, naming the file: its size or CRC differs from the manifest.
//
// The check ends at the first error.
absl::Status VerifyCheckpoint(const std::string& directory);
// Removes all but the `keep` checkpoints of ListCheckpoints with the highest steps; a negative `keep` counts
// as 0. Never removes the checkpoint in the directory `protect`, unless `protect` is empty; if it is not
// among the highest steps, it is kept in addition. Removes the oldest first and stops at the first error. An
// interrupted removal leaves an unfinished checkpoint.
absl::Status PruneCheckpoints(const std::string& root, int keep, const std::string& protect);

// The file DENSE consists of these parts; integers are little-endian:
//
//   8 bytes   magic "TANDEMD1"
//   u32       size of the next part in bytes
//             DenseState, protobuf
//   u32       CRC-32 of everything before
//
// WriteDenseState syncs the file and replaces an existing one atomically; after an error that one is
// unchanged. InvalidArgument: the state is larger than 2 GiB.
absl::Status WriteDenseState(const std::string& directory, const v1::DenseState& state);
// Reads the file DENSE in `directory`. NotFound: there is none. DataLoss: it is damaged.
absl::StatusOr<v1::DenseState> ReadDenseState(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_
