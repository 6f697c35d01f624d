// SPDX-License-Identifier: Apache-2.0
// The part of Durability that brings a server back: restores a snapshot and replays the log.

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

// Returns the id of the running kernel's boot; empty if there is none, which equals no other.
std::string BootId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

template <typename Message>
absl::StatusOr<Message> Parse(const Record& record) {
  Message message;
  if (message.ParseFromArray(record.body.data(), static_cast<int>(record.body.size()))) return message;
  return absl::DataLossError(absl::StrCat("record ", record.position, " of kind ",
                                          static_cast<uint32_t>(record.kind), " does not parse"));
}

// Returns FailedPrecondition unless the file `path` is of this server. `header` is its LogSegmentHeader or its
// SnapshotState.
template <typename Header>
absl::Status CheckOwner(const std::string& path, const Header& header, const TableRegistry& tables) {
  const ShardMap& map = tables.shard_map();
  if (header.server_index() == tables.server() && header.num_servers() == map.num_servers() &&
      header.num_buckets() == map.num_buckets()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is of server ", header.server_index(), " of ", header.num_servers(), " with ",
                   header.num_buckets(), " buckets, and this is server ", tables.server(), " of ",
                   map.num_servers(), " with ", map.num_buckets(),
                   ": give each server a --wal-dir of its own. A log goes on with as many servers as it began "
                   "with; for another number, resume from a checkpoint with an empty --wal-dir"));
}

}  // namespace

absl::Status Durability::CheckSegments(const std::vector<LogSegment>& segments, uint64_t after) const {
  for (size_t i = 0; i < segments.size(); ++i) {
    const v1::LogSegmentHeader& header = segments[i].header;
    TANDEM_RETURN_IF_ERROR(CheckOwner(segments[i].path, header, *server_.tables));
    const bool needed = i + 1 == segments.size() || segments[i + 1].header.first_position() > after + 1;
    const bool same_boot = !boot_id_.empty() && header.boot_id() == boot_id_;
    if (needed && !header.synced() && !same_boot && !options_.accept_loss) {
      return absl::FailedPreconditionError(
          absl::StrCat(segments[i].path,
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
  if (!snapshots.empty()) {
    TANDEM_RETURN_IF_ERROR(Annotate(Restore(snapshots.front().path), "restoring a snapshot"));
  }
  TANDEM_ASSIGN_OR_RETURN(LogEnd end, ReadLog(*files_, log.segments, after, options_.accept_loss,
                                              [this](const Record& record) { return Replay(record); }));
  uint64_t contained = after;
  for (const auto& filter : filters_) contained = std::max(contained, filter->last());
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
  restored_storage_.clear();
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

absl::Status Durability::Restore(const std::string& path) {
  const auto restore_state = [&](const v1::SnapshotState& state) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(CheckOwner(path, state, *server_.tables));
    for (const v1::SnapshotTable& table : state.tables()) {
      TANDEM_RETURN_IF_ERROR(Annotate(RestoreTable(table), path));
    }
    server_.requests->RestoreFenceState(state.fences());
    for (const v1::LogRegister& one : state.registered()) server_.restore_registered(one.name(), one.rank());
    return absl::OkStatus();
  };
  const auto restore_rows = [&](const v1::SnapshotBucket& bucket) -> absl::StatusOr<RestoreRow> {
    TableStorage* const storage = restored_storage_[bucket.table()].get();
    if (bucket.bucket() >= server_.tables->shard_map().num_buckets()) {
      return absl::DataLossError(absl::StrCat(path, ": there is no bucket ", bucket.bucket()));
    }
    filters_[bucket.table()]->SetBucket(bucket.bucket(), bucket.position(), bucket.queued());
    if (!bucket.filter().empty() && !storage->RestoreFilter(bucket.bucket(), bucket.filter())) {
      return absl::DataLossError(
          absl::StrCat(path, ": bucket ", bucket.bucket(), " has admission counters of wrong size"));
    }
    // A bucket that was copied late has rows that are newer than the state from which the replay begins. They
    // keep their version, so that they are as old after the replay as they were. Eviction takes a row that is
    // further ahead than this for a very old one.
    constexpr uint32_t kFurthest = RowEvictor::kMostAhead - 1;
    const auto state_version = static_cast<uint32_t>(storage->clock());
    return RestoreRow([storage, state_version](uint64_t id, const float* row, RowHistory history) {
      if (static_cast<int32_t>(history.version - state_version) > static_cast<int32_t>(kFurthest)) {
        history.version = state_version + kFurthest;
      }
      return storage->Restore(id, row, history);
    });
  };
  return ReadSnapshot(*files_, path, restore_state, restore_rows);
}

absl::Status Durability::RestoreTable(const v1::SnapshotTable& saved) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<TableStorage> storage, server_.tables->NewStorage(saved.config()));
  if (storage->row_floats() != saved.row_floats()) {
    return absl::FailedPreconditionError(
        absl::StrCat("table '", saved.config().name(), "': rows of ", saved.row_floats(),
                     " floats were saved, this version of Tandem keeps ", storage->row_floats()));
  }
  storage->Clear();
  storage->SetClock(saved.version());
  filters_.push_back(std::make_shared<ReplayFilter>(server_.tables->shard_map().num_buckets()));
  const std::shared_ptr<ServerTable> table = server_.tables->NewTable(saved.config(), nullptr);
  table->RestoreSnapshot(saved, storage, filters_.back());
  server_.tables->Add(table);
  restored_storage_.push_back(std::move(storage));
  return absl::OkStatus();
}

absl::Status Durability::Replay(const Record& record) {
  switch (record.kind) {
    case RecordKind::kPush:
      // A push that is refused now was not acknowledged as applied either: its sender has changed it, in
      // memory that it shares with the server, after the server had checked it.
      if (const absl::Status replayed =
              server_.requests->ReplayPush(Bytes(std::string(record.body)), record.position);
          !replayed.ok()) {
        LogError(absl::StrCat("record ", record.position, " of the log is left out: ", replayed.message()));
      }
      return absl::OkStatus();
    case RecordKind::kCreateTable: {
      TANDEM_ASSIGN_OR_RETURN(const auto create, Parse<v1::LogCreateTable>(record));
      TANDEM_RETURN_IF_ERROR(server_.tables->Recreate(create.config()));
      TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(create.config().name()));
      table->RaiseGeneration(create.generation());
      return absl::OkStatus();
    }
    case RecordKind::kChangeMode: {
      TANDEM_ASSIGN_OR_RETURN(const auto change, Parse<v1::SetUpdateModeRequest>(record));
      TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(change.table()));
      RequestHandler::Waiters released;  // nobody waits yet
      table->SetUpdateMode(change.update_mode(), &released);
      return absl::OkStatus();
    }
    case RecordKind::kFlush: {
      TANDEM_ASSIGN_OR_RETURN(const auto flush, Parse<v1::FlushRequest>(record));
      TANDEM_ASSIGN_OR_RETURN(const auto table, server_.tables->Find(flush.table()));
      table->Flush();
      return absl::OkStatus();
    }
    case RecordKind::kWriteRows: {
      TANDEM_ASSIGN_OR_RETURN(const auto write, Parse<v1::WriteRowStatesRequest>(record));
      return server_.row_states->ReplayWrite(write, record.position);
    }
    case RecordKind::kStartEpoch: {
      TANDEM_ASSIGN_OR_RETURN(const auto start, Parse<v1::LogStartEpoch>(record));
      server_.requests->RepeatStartEpoch(start.worker(), start.epoch(), start.token());
      return absl::OkStatus();
    }
    case RecordKind::kRegister: {
      TANDEM_ASSIGN_OR_RETURN(const auto registered, Parse<v1::LogRegister>(record));
      server_.restore_registered(registered.name(), registered.rank());
      return absl::OkStatus();
    }
    default:
      return absl::FailedPreconditionError(
          absl::StrCat("record ", record.position, " has kind ", static_cast<uint32_t>(record.kind),
                       ", which this version of Tandem does not know: start the server with the version that "
                       "wrote it"));
  }
}

}  // namespace tandem::ps
