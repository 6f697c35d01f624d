// SPDX-License-Identifier: Apache-2.0
// The part of Durability that brings a server back from its files: a snapshot and the log behind it.

#include <algorithm>
#include <cctype>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/server/durability.h"
#include "ps/storage/row_evictor.h"

namespace tandem::ps {
namespace {

constexpr int kLockWaitMs = 5000;
constexpr absl::string_view kOwnDirectories =
    "give each server a --wal-dir of its own. A log goes on with as many servers as it began with; for "
    "another "
    "number, resume from a checkpoint with an empty --wal-dir";

// Returns the id of the running kernel's boot; empty if there is none, which equals no other.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace

absl::Status Durability::CheckSegments(const std::vector<LogSegment>& segments, uint64_t after) const {
  for (size_t i = 0; i < segments.size(); ++i) {
    const v1::LogSegmentHeader& header = segments[i].header;
    TANDEM_RETURN_IF_ERROR(CheckOwner(segments[i].path, header, *server_.tables, kOwnDirectories));
    const bool needed = i + 1 == segments.size() || segments[i + 1].header.first_position() > after + 1;
    const bool same_boot = !boot_id_.empty() && header.boot_id() == boot_id_;
    if (needed && !header.synced() && !same_boot && !options_.accept_loss) {
      return absl::FailedPreconditionError(absl::StrCat(
          segments[i].path,
          " was written without syncs (--wal-sync never), and the machine has been started "
          "again since, or is another one: the end of the log may be lost, and with it pushes "
          "that were acknowledged. Resume from a checkpoint with an empty --wal-dir, or go on with "
          "what there is (--accept-loss)"));
    }
  }
  return absl::OkStatus();
}

absl::Status Durability::Recover() {
  const absl::Time begin = MonotonicNow();
  if (options_.files == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(lock_, DirectoryLock::Take(options_.directory, kLockWaitMs));
  }
  boot_id_ = options_.boot_id.empty() ? BootId() : options_.boot_id;
  TANDEM_ASSIGN_OR_RETURN(const std::vector<SnapshotName> snapshots,
                          ListSnapshots(*files_, options_.directory));
  TANDEM_ASSIGN_OR_RETURN(const LogSegments log,
                          ListSegments(*files_, options_.directory, options_.accept_loss));
  const uint64_t after = snapshots.empty() ? 0 : snapshots.front().position;
  TANDEM_RETURN_IF_ERROR(CheckSegments(log.segments, after));
  StateRestore restore(&server_, StateRestore::Origin::kFiles,
                       snapshots.empty() ? options_.directory : snapshots.front().path);
  if (!snapshots.empty()) {
    TANDEM_RETURN_IF_ERROR(Annotate(Restore(snapshots.front().path, &restore), "restoring a snapshot"));
  }
  TANDEM_ASSIGN_OR_RETURN(LogEnd end, ReadLog(*files_, log.segments, after, options_.accept_loss,
                                              [&](const Record& record) { return restore.Replay(record); }));
  const uint64_t contained = std::max(after, restore.contained());
  if (end.position < contained) {
    if (!options_.accept_loss) {
      return absl::DataLossError(
          absl::StrCat(options_.directory, ": the log ends with record ", end.position,
                       ", but the snapshot contains record ", contained,
                       ": a file of the log is missing or cut short; restore it, or go on with what there is "
                       "(--accept-loss)"));
    }
    end.position = contained;  // these positions must not be given again
  }
  std::set<std::string> obsolete(log.unfinished.begin(), log.unfinished.end());
  obsolete.insert(log.lost.begin(), log.lost.end());
  obsolete.insert(end.behind.begin(), end.behind.end());
  // A segment without a record holds disk space that the next one needs.
  for (const LogSegment& segment : log.segments) {
    if (segment.header.first_position() > end.position) obsolete.insert(segment.path);
  }
  // The records may be in the kernel's cache only, because the last life of the server died before its sync,
  // or because that sync failed. From now on they count as taken. Earlier segments were synced before the
  // last one was made.
  if (options_.sync) {
    for (const LogSegment& segment : log.segments) {
      if (obsolete.contains(segment.path)) continue;
      const bool last = &segment == &log.segments.back() || obsolete.contains((&segment)[1].path);
      TANDEM_RETURN_IF_ERROR(last ? files_->RewriteFile(segment.path) : files_->SyncFile(segment.path));
    }
  }
  for (const std::string& path : obsolete) TANDEM_RETURN_IF_ERROR(files_->Remove(path));
  if (!obsolete.empty()) TANDEM_RETURN_IF_ERROR(files_->SyncDirectory(options_.directory));

  PushLog::Options options{.files = files_,
                           .directory = options_.directory,
                           .sync = options_.sync,
                           .segment_bytes = options_.segment_bytes,
                           .max_queued_bytes = options_.max_queued_bytes,
                           .on_failure = options_.on_failure,
                           .on_group = [this] { SnapshotIfDue(); }};
  options.header.set_format_version(kLogFormatVersion);
  const uint64_t term = log.term + 1;
  options.header.set_term(term);
  options.header.set_server_index(server_.tables->server());
  options.header.set_num_servers(server_.tables->shard_map().num_servers());
  options.header.set_num_buckets(server_.tables->shard_map().num_buckets());
  options.header.set_boot_id(boot_id_);
  options.header.set_synced(options_.sync);
  for (const auto& table : server_.tables->All()) {
    table->RaiseGeneration(table->generation() + options.header.term());
  }
  // Segments that are not full take as much of the disk as full ones.
  const uint64_t held = std::max(
      end.bytes, (log.segments.size() - std::min<size_t>(log.segments.size(), 1)) * options_.segment_bytes);
  next_snapshot_bytes_ = options_.snapshot_bytes - std::min(options_.snapshot_bytes, held);
  TANDEM_ASSIGN_OR_RETURN(log_, PushLog::Open(options, end.position + 1));
  for (const LogSegment& segment : log.segments) {
    if (obsolete.contains(segment.path)) continue;
    log_->AddOldSegment(segment.header.first_position(), segment.path);
  }
  {
    absl::MutexLock lock(&mutex_);
    info_.set_term(term);
    info_.set_snapshot_position(after);
    info_.set_replayed_records(end.records);
    info_.set_recovery_s(absl::ToDoubleSeconds(MonotonicNow() - begin));
    replayed_bytes_ = end.bytes;
  }
  if (options_.accept_loss && end.position > 0) {
    // The next start must not ask again.
    TANDEM_RETURN_IF_ERROR(SnapshotNow());
  }
  LogInfo(absl::StrFormat("server %d: log of term %d in %s; replayed %d records after position %d in %.2f s",
                          server_.tables->server(), term, options_.directory, end.records, after,
                          absl::ToDoubleSeconds(MonotonicNow() - begin)));
  return absl::OkStatus();
}

absl::Status Durability::Restore(const std::string& path, StateRestore* restore) {
  return ReadSnapshot(
      *files_, path,
      [&](const v1::SnapshotState& state) {
        TANDEM_RETURN_IF_ERROR(CheckOwner(path, state, *server_.tables, kOwnDirectories));
        return restore->RestoreState(state);
      },
      [&](const v1::SnapshotBucket& bucket) { return restore->RestoreBucket(bucket); });
}

}  // namespace tandem::ps
