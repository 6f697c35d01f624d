#ifndef TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_
#define TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_

// Checkpoints as directories, and how one comes to be all at once:
//
//   auto unfinished = BeginCheckpoint(root, step);     // root/unfinished-step-000000001234
//   client->SaveCheckpoint(*unfinished);               // each server writes its table files there
//   WriteDenseState(*unfinished, dense);               // the workers' own part
//   auto path = CommitCheckpoint(*unfinished, manifest);  // root/step-000000001234
//
// One process, rank 0, does this for all. What is not committed is never listed, and is removed by the next
// Begin.
//
//   step-000000001234/
//     MANIFEST            CheckpointManifest as protobuf text, then a line with its CRC-32; written last
//     DENSE               the workers' part (WriteDenseState)
//     user.0-of-2.table   ... one for each table and server (ps/checkpoint/format.h)
//
// Functions of a root or a directory; they keep no state. One process may write under a root at a time, any
// number read. Errors name paths.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

inline constexpr uint32_t kCheckpointFormatVersion = 1;

struct CheckpointEntry {
  std::string path;
  uint64_t step = 0;
  v1::CheckpointManifest manifest;
};

// "step-000000001234".
std::string CheckpointName(uint64_t step);

// Makes `root` where needed, removes what earlier saves left unfinished, and returns a fresh directory to
// write to.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, uint64_t step);
// Lists the directory's files with sizes and CRCs in the manifest (whose `files` and `format_version` are
// filled in here), writes MANIFEST, makes everything durable and renames the directory to its final name,
// which is returned. A checkpoint that was there under that name is replaced in one step. On an error nothing
// is committed.
absl::StatusOr<std::string> CommitCheckpoint(const std::string& unfinished, v1::CheckpointManifest manifest);

// The committed checkpoints under `root`, oldest step first; none when `root` does not exist. Directories
// whose MANIFEST cannot be read are left out.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& root);
// The path of the newest. NotFound, naming `root`, when there is none.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);
// NotFound when `directory` holds no MANIFEST (no checkpoint, or an unfinished one); DataLoss when it is
// damaged; FailedPrecondition when its format is newer than this program.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& directory);
// Reads every file of the checkpoint: DataLoss names the first whose size or CRC differs from the manifest.
absl::Status VerifyCheckpoint(const std::string& directory);
// Removes all but the newest `keep` checkpoints, and never the one whose path is `protect` (may be empty).
absl::Status PruneCheckpoints(const std::string& root, int keep, const std::string& protect);

// The file DENSE: magic "TANDEMD1" | u32 bytes | DenseState, protobuf | u32 CRC-32 of all before.
absl::Status WriteDenseState(const std::string& directory, const v1::DenseState& state);
absl::StatusOr<v1::DenseState> ReadDenseState(const std::string& directory);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_
