// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_
#define TANDEM_PS_CHECKPOINT_CHECKPOINT_DIR_H_

// Functions that write, list and read checkpoints. A checkpoint is a directory, which is committed
// atomically:
//
//   auto unfinished = BeginCheckpoint(root, step);               // root/unfinished-step-000000001234
//   auto written = client->SaveCheckpoint(*unfinished);          // each server writes its table files there
//   WriteDenseState(*unfinished, dense);                         // the workers' own part
//   auto path = CommitCheckpoint(*unfinished, manifest, *written);  // root/step-000000001234
//
// One process, rank 0, does this for the whole job. A checkpoint that is not committed is never listed, and
// the next BeginCheckpoint removes it. A committed checkpoint contains:
//
//   step-000000001234/
//     MANIFEST            CheckpointManifest as protobuf text, then a line with its CRC-32; written last
//     DENSE               the workers' part (WriteDenseState)
//     user.0-of-2.table   one file for each table and server (ps/checkpoint/format.h)
//
// A checkpoint may build on another one beside it, its base (ps/checkpoint/chain.h).
//
// The functions keep no state and block on the disk. At most one thread of one process may call
// BeginCheckpoint, CommitCheckpoint and PruneCheckpoints for a root at a time; any number may read. Errors
// name the path. Errors of the file system have the code of absl::ErrnoToStatus.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "tandem/v1/checkpoint.pb.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

inline constexpr uint32_t kCheckpointFormatVersion = 1;
// The format version of checkpoints that build on another.
inline constexpr uint32_t kDeltaFormatVersion = 2;

// A committed checkpoint.
struct CheckpointEntry {
  std::string path;   // root/step-000000001234
  uint64_t step = 0;  // from the directory's name; CommitCheckpoint does not compare it with manifest.step
  v1::CheckpointManifest manifest;
};

// Returns the directory name of a step's checkpoint, such as "step-000000001234".
std::string CheckpointName(uint64_t step);
// Returns whether CheckpointName returns `name` for some step.
bool IsCheckpointName(absl::string_view name);
// Returns the step of a directory name that CheckpointName returned.
uint64_t StepOfName(absl::string_view name);

// Creates `root` if necessary, ends interrupted replacements (RepairCheckpoints), removes all unfinished
// checkpoints under it, and returns the path of a new directory to write to. A committed checkpoint of the
// same step stays until CommitCheckpoint replaces it.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& root, uint64_t step);
// Returns the directory that BeginCheckpoint makes.
std::string UnfinishedPath(const std::string& root, uint64_t step);
// Commits the checkpoint in the directory `unfinished`, which BeginCheckpoint returned:
//
//   1. It fills in the manifest's `format_version`, its `files`, and the `base` on which these build. All
//   other
//      fields, including `step`, are the caller's. A file in `written`, which its writer has described, must
//      be there with the same size and is not read. Every other file is read for its CRC.
//   2. It writes MANIFEST, and makes it and the directory durable. Functions that write the other files, such
//      as WriteTableFile and WriteDenseState, have made these durable already.
//   3. It renames the directory to its final name. A checkpoint of that name is replaced and removed.
//
// Replacement is atomic if the file system can exchange two directories. Otherwise, after a crash between the
// renames, RepairCheckpoints brings the replaced checkpoint back.
//
// Returns the final path. After an error nothing is committed, the replaced checkpoint is where it was, and
// the call may be repeated. Errors: InvalidArgument if `unfinished` is not a path that BeginCheckpoint
// returns, or if files build on several checkpoints or on the one that is replaced; DataLoss, naming the
// file, if a file of `written` is missing or has another size here; Aborted if a table lacks the part of a
// server, because the table was created or dropped while the servers began to save. If the rename succeeds
// but `root` cannot be synced, or the replaced checkpoint cannot be removed, the checkpoint is committed, and
// a warning is logged.
absl::StatusOr<std::string> CommitCheckpoint(const std::string& unfinished, v1::CheckpointManifest manifest,
                                             absl::Span<const v1::SavedFile> written = {});
// Replaces the MANIFEST of the committed checkpoint in `directory`, atomically and durably. `format_version`,
// `files` and `base` stay as they are; all other fields are those of `manifest`. After an error the old one
// is in place. Errors: those of ReadManifest, and of the file system.
absl::Status UpdateManifest(const std::string& directory, v1::CheckpointManifest manifest);
// Replaces the committed checkpoint in `directory` by `replacement`, a directory beside it that has the same
// files, none of which builds on another checkpoint. `before` is the checkpoint's manifest; those of its
// files that are in `written` are new. Aborted, with nothing changed: the checkpoint has another manifest by
// now, or is gone. For the rest as CommitCheckpoint. The caller removes `replacement` after an error.
absl::Status ReplaceByComplete(const std::string& directory, const std::string& replacement,
                               const v1::CheckpointManifest& before, absl::Span<const v1::SavedFile> written);
// Brings back checkpoints whose replacement a crash has interrupted, and removes those of a run that another
// one has overwritten (ps/checkpoint/overwrite.h). To be called before a run looks for checkpoints under
// `root`, by the process that writes them. OK if `root` does not exist.
absl::Status RepairCheckpoints(const std::string& root);

// Returns the committed checkpoints under `root`, lowest step first; none if `root` does not exist. Omits
// directories for which ReadManifest fails, also those of a newer format, and checkpoints of a run that
// another one has overwritten. Does not read the other files. Errors are those of the file system: `root`
// cannot be accessed.
absl::StatusOr<std::vector<CheckpointEntry>> ListCheckpoints(const std::string& root);
// Returns the path of the last checkpoint of ListCheckpoints: the one with the highest step whose MANIFEST
// can be read. NotFound, naming `root`: there is none.
absl::StatusOr<std::string> LatestCheckpoint(const std::string& root);
// Returns the path of the checkpoint whose model is to be used. That is `directory` itself if it is a
// checkpoint. Otherwise it is, of the checkpoints under it, that of `best_step` of the newest one's manifest;
// the newest one if there is no such step, or if that checkpoint no longer exists. NotFound: there is none.
absl::StatusOr<std::string> BestCheckpoint(const std::string& directory);
// Returns the paths under `root` that have the name of a checkpoint, lowest step first, also those whose
// MANIFEST cannot be read. None if `root` does not exist.
absl::StatusOr<std::vector<std::string>> CheckpointPaths(const std::string& root);
// Renames the checkpoint in `directory` to "damaged-step-...", which the functions above no longer find.
// Returns the new path. For a checkpoint that cannot be loaded, but that a user may want to look at.
absl::StatusOr<std::string> SetAside(const std::string& directory);
// Removes the checkpoint in `directory`. An interrupted removal leaves an unfinished checkpoint.
absl::Status RemoveCheckpoint(const std::string& directory);
// Reads the manifest of the checkpoint in `directory`. Errors:
//
//   - NotFound: there is no MANIFEST, so the directory is no checkpoint or an unfinished one;
//   - DataLoss: MANIFEST is damaged;
//   - FailedPrecondition: the format is newer than this program;
//   - PermissionDenied: MANIFEST is a symbolic link that leads out of the directory.
//
// Files of a checkpoint are read in the same way: none is read through such a link.
absl::StatusOr<v1::CheckpointManifest> ReadManifest(const std::string& directory);
// Reads the manifest of the checkpoint `name` in `root`, where another checkpoint has named it.
// PermissionDenied: a symbolic link in the path leads out of `root`. Otherwise as ReadManifest.
absl::StatusOr<v1::CheckpointManifest> ReadManifestBelow(const std::string& root, const std::string& name);
// Reads every file of the checkpoint and compares it with the manifest. Errors:
//
//   - those of ReadManifest;
//   - NotFound: a file that the manifest lists is missing;
//   - DataLoss, naming the file: its size or CRC differs from the manifest.
//
// The check ends at the first error.
absl::Status VerifyCheckpoint(const std::string& directory);
// Compares one file of the checkpoint in `directory` with its entry in the manifest: size and CRC. Errors are
// those of VerifyCheckpoint.
absl::Status VerifyCheckpointFile(const std::string& directory, const v1::CheckpointFile& file);
// Checks that every file of the manifest is in `directory` and has its size, without reading it. DataLoss,
// naming the file, otherwise.
absl::Status CheckSizes(const std::string& directory, const v1::CheckpointManifest& manifest);
// Removes all but the `keep` checkpoints of ListCheckpoints with the highest steps; a negative `keep` counts
// as 0. Never removes the checkpoint in the directory `protect`, unless `protect` is empty; if it is not
// among the highest steps, it is kept in addition. So are the checkpoints on which those that are kept build,
// whatever their run. With a `run_id`, checkpoints with another run id (or none) are neither counted nor
// removed. Removes the oldest first and stops at the first error. An interrupted
// removal leaves an unfinished checkpoint.
absl::Status PruneCheckpoints(const std::string& root, int keep, const std::string& protect,
                              const absl::optional<std::string>& run_id = absl::nullopt);

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
