// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SNAPSHOT_SNAPSHOT_FILE_H_
#define TANDEM_PS_SNAPSHOT_SNAPSHOT_FILE_H_

// Writes and reads a snapshot of one parameter server: what the log need not hold any more. ps/log/record.h
// has the format. A snapshot belongs to its server; checkpoints (ps/checkpoint) belong to the job.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "ps/log/file_system.h"
#include "ps/log/record.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// The rows of one bucket, copied into memory.
class BucketCopy {
 public:
  // Copies the bucket's rows and admission counters. `table` is the table's index in SnapshotState. Errors
  // are those of TableStorage::VisitBucket.
  static absl::StatusOr<BucketCopy> Of(TableStorage& storage, uint32_t table, uint32_t bucket);

  // The position of the log that the copy is of, and the pushes before it that are not in the rows.
  void SetPosition(uint64_t position, const std::vector<uint64_t>& queued);

  // Calls `visit` with the body of each record ROWS (ps/log/record.h) that the copy needs, one at least. A
  // body has about `row_bytes` bytes of rows, and is valid during the call. Stops at the first error.
  absl::Status VisitBodies(size_t row_bytes, absl::FunctionRef<absl::Status(const Bytes& body)> visit) const;

 private:
  v1::SnapshotBucket header_;
  uint32_t row_floats_ = 0;
  std::string rows_;
};

// Writes one snapshot. Not thread-safe. All calls block on the disk. After an error the writer must be
// destroyed, which removes what was written.
class SnapshotWriter {
 public:
  // Begins the snapshot of `state.position()` in `directory`.
  static absl::StatusOr<std::unique_ptr<SnapshotWriter>> Begin(FileSystem* files,
                                                               const std::string& directory,
                                                               const v1::SnapshotState& state);
  ~SnapshotWriter();

  absl::Status Add(BucketCopy copy);
  // Completes the snapshot: from now on ListSnapshots returns it, also after a crash.
  absl::Status Commit();

 private:
  SnapshotWriter(FileSystem* files, std::string directory, std::string path)
      : files_(files), directory_(std::move(directory)), path_(std::move(path)) {}
  absl::Status Append(RecordKind kind, const Bytes& body);

  FileSystem* const files_;
  const std::string directory_;
  const std::string path_;  // of the complete file
  std::unique_ptr<LogFile> file_;
  uint64_t offset_ = 0;
  uint64_t records_ = 0;
  std::string buffer_;
  bool committed_ = false;
};

// A complete snapshot on the disk.
struct SnapshotName {
  uint64_t position;
  std::string path;
};
// Returns the snapshots in `directory`, the newest first. Removes unfinished ones.
absl::StatusOr<std::vector<SnapshotName>> ListSnapshots(FileSystem& files, const std::string& directory);

// Restores one row.
using RestoreRow = std::function<absl::Status(uint64_t id, const float* row, const RowHistory& history)>;
// Restores the rows of a record ROWS with the function that `rows` returns for it. `row_floats` is by table.
// Stops at the first error. `damaged` makes the error of a body that does not fit.
absl::Status RestoreRows(absl::string_view body, absl::Span<const uint32_t> row_floats,
                         absl::FunctionRef<absl::Status(absl::string_view how)> damaged,
                         absl::FunctionRef<absl::StatusOr<RestoreRow>(const v1::SnapshotBucket&)> rows);

// Reads a snapshot. Calls `state` once, then `rows` for each record of a bucket's rows, and for each of its
// rows the function that `rows` returned. Stops at the first error. DataLoss, naming file and byte: the file
// is damaged. The caller must then discard everything.
absl::Status ReadSnapshot(
    FileSystem& files, const std::string& path,
    absl::FunctionRef<absl::Status(const v1::SnapshotState& state)> state,
    absl::FunctionRef<absl::StatusOr<RestoreRow>(const v1::SnapshotBucket& bucket)> rows);

}  // namespace tandem::ps

#endif  // TANDEM_PS_SNAPSHOT_SNAPSHOT_FILE_H_
