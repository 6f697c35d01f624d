// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_DURABILITY_H_
#define TANDEM_PS_SERVER_DURABILITY_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/directory_lock.h"
#include "base/longest_time.h"
#include "ps/log/file_system.h"
#include "ps/log/log_reader.h"
#include "ps/log/push_log.h"
#include "ps/server/parameter_server.h"
#include "ps/server/server_parts.h"
#include "ps/server/state_capture.h"
#include "ps/server/state_restore.h"
#include "ps/snapshot/snapshot_file.h"
#include "tandem/v1/durability.pb.h"

namespace tandem::ps {

// Lets a server survive its own death: owns its log (ps/log), takes snapshots that truncate the log
// (ps/snapshot), and brings tables, fences, clocks and queued pushes back from both. docs/durability.md has
// the guarantees.
//
// A snapshot is taken while pushes go on: the small state first, then one bucket after the other, each at a
// moment without a push under way. The buckets are therefore of different positions of the log, which the
// snapshot holds; a replay leaves out what a bucket contains (ReplayFilter).
//
// Lock order: RequestHandler's push_mutex_, then the log's mutex.
class Durability {
 public:
  // Requires a non-empty options.directory.
  Durability(const DurabilityOptions& options, const ServerParts& server);
  ~Durability();

  // Restores the newest snapshot, replays the log behind it, and begins a new term of the log. Called once,
  // before the server serves. Blocks on the disk. Removes unfinished snapshots. Errors, after which no record
  // that was readable is lost:
  //
  //   - Unavailable: another process holds the log
  //   - DataLoss: a file is damaged or missing, and not at the log's end
  //   - FailedPrecondition: the files are of another server, or a newer version of Tandem wrote them; or the
  //     log was not synced and the machine has been started again since (DurabilityOptions::accept_loss)
  //   - other errors: the system's, and those of creating the tables
  absl::Status Recover();

  // Returns the log; nullptr before Recover.
  PushLog* log() { return log_.get(); }

  // Takes a whole snapshot at once. Must be called within RequestHandler::BetweenPushes on the background
  // thread, or before the server serves. Blocks on the disk. On an error the log fails, because it does not
  // lead to the tables' present contents.
  absl::Status SnapshotNow();

  v1::DurabilityInfo Info() const;

  // Writes what the log still holds and ends its thread. Idempotent.
  void Stop();

 private:
  // A snapshot that is being taken.
  struct Running {
    explicit Running(const ServerParts* server) : capture(server) {}
    uint64_t position = 0;
    StateCapture capture;
    std::unique_ptr<SnapshotWriter> writer;
    size_t next_bucket = 0;           // index in buckets_
    uint64_t log_bytes_at_begin = 0;  // PushLog::Statistics::written_bytes
  };

  // Restores the snapshot in the file `path`.
  absl::Status Restore(const std::string& path, StateRestore* restore);
  absl::Status CheckSegments(const std::vector<LogSegment>& segments, uint64_t after) const;

  // Starts a snapshot on the background thread once the log is long enough.
  void SnapshotIfDue();
  // Run on the background thread: begin a snapshot, copy the next bucket, give up.
  void BeginSnapshot();
  void ContinueSnapshot();
  void AbandonSnapshot(const absl::Status& why);
  // Lets the next snapshot begin, at once if the log has grown enough meanwhile.
  void EndSnapshot();
  // The parts of a snapshot. The first two must be called between pushes.
  v1::SnapshotState CaptureState(Running* running);
  absl::StatusOr<std::vector<BucketCopy>> CopyBucket(const Running& running, uint32_t bucket);
  absl::Status Commit(Running* running);
  // Removes the files that a snapshot at `position` replaces.
  absl::Status RemoveOld(uint64_t position);

  const DurabilityOptions options_;
  const ServerParts server_;
  FileSystem* const files_;
  std::string boot_id_;
  std::vector<uint32_t> buckets_;  // of this server
  std::unique_ptr<DirectoryLock> lock_;
  std::unique_ptr<PushLog> log_;

  std::unique_ptr<Running> running_;  // Recover and the background thread use it

  std::atomic<bool> snapshot_wanted_{false};
  std::atomic<uint64_t> next_snapshot_bytes_;  // of PushLog::Statistics::written_bytes

  LongestTime longest_pause_;  // of a snapshot
  mutable absl::Mutex mutex_;
  v1::DurabilityInfo info_ ABSL_GUARDED_BY(mutex_);      // what the log does not count
  uint64_t replayed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // since the last snapshot, by earlier terms
  uint64_t bytes_at_snapshot_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_DURABILITY_H_
