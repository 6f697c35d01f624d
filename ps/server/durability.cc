// SPDX-License-Identifier: Apache-2.0
// The snapshots of a durable server. ps/server/recovery.cc reads them back.

#include "ps/server/durability.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status.h"

namespace tandem::ps {

Durability::Durability(const DurabilityOptions& options, const ServerParts& server)
    : options_(options),
      server_(server),
      files_(options.files == nullptr ? PosixFileSystem() : options.files),
      buckets_(OwnBuckets(*server.tables)),
      next_snapshot_bytes_(options.snapshot_bytes) {}

Durability::~Durability() { Stop(); }

void Durability::Stop() {
  if (log_ != nullptr) log_->Stop();
}

v1::DurabilityInfo Durability::Info() const {
  v1::DurabilityInfo info;
  uint64_t old_bytes, at_snapshot;
  {
    absl::MutexLock lock(&mutex_);
    info = info_;
    old_bytes = replayed_bytes_;
    at_snapshot = bytes_at_snapshot_;
  }
  info.set_enabled(true);
  info.set_synced(options_.sync);
  info.set_snapshot_bytes(options_.snapshot_bytes);
  if (log_ == nullptr) return info;
  const PushLog::Statistics log = log_->statistics();
  info.set_log_position(log_->last_position());
  info.set_durable_position(log.durable_position);
  info.set_log_bytes(old_bytes + log.written_bytes - at_snapshot);
  info.set_written_bytes(log.written_bytes);
  info.set_syncs(log.groups);
  info.set_longest_sync_s(log.longest_sync_s);
  info.set_log_waits(log.waits);
  const absl::Status status = log_->status();
  info.set_failure(status.ok() ? log_->waiting_for() : std::string(status.message()));
  return info;
}

void Durability::SnapshotIfDue() {
  if (log_ == nullptr || snapshot_wanted_.load(std::memory_order_relaxed)) return;
  if (log_->statistics().written_bytes < next_snapshot_bytes_.load(std::memory_order_relaxed)) return;
  if (snapshot_wanted_.exchange(true)) return;
  if (!server_.background->Post([this] { BeginSnapshot(); })) snapshot_wanted_ = false;
}

v1::SnapshotState Durability::CaptureState(Running* running) {
  running->log_bytes_at_begin = log_->statistics().written_bytes;
  running->position = log_->last_position();
  return running->capture.CaptureState(running->position);
}

absl::StatusOr<std::vector<BucketCopy>> Durability::CopyBucket(const Running& running, uint32_t bucket) {
  return running.capture.CopyBucket(bucket, log_->last_position());
}

void Durability::BeginSnapshot() {
  if (*server_.stopping) return;
  running_ = std::make_unique<Running>(&server_);
  v1::SnapshotState state;
  absl::Status status = server_.requests->BetweenPushes(&longest_pause_, [&] {
    state = CaptureState(running_.get());
    return absl::OkStatus();
  });
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<SnapshotWriter>> writer =
        SnapshotWriter::Begin(files_, options_.directory, state);
    status = writer.status();
    if (writer.ok()) running_->writer = *std::move(writer);
  }
  if (!status.ok()) return AbandonSnapshot(status);
  server_.background->Post([this] { ContinueSnapshot(); });
}

void Durability::ContinueSnapshot() {
  // SnapshotNow may have taken its place.
  if (running_ == nullptr || *server_.stopping) return;
  absl::Status status;
  if (running_->next_bucket < buckets_.size()) {
    absl::StatusOr<std::vector<BucketCopy>> copies;
    status = server_.requests->BetweenPushes(&longest_pause_, [&]() -> absl::Status {
      copies = CopyBucket(*running_, buckets_[running_->next_bucket++]);
      return copies.status();
    });
    if (status.ok()) {
      for (BucketCopy& copy : *copies) {
        if (status.ok()) status = running_->writer->Add(std::move(copy));
      }
    }
    if (status.ok()) {
      server_.background->Post([this] { ContinueSnapshot(); });
      return;
    }
  } else {
    status = Commit(running_.get());
  }
  if (!status.ok()) return AbandonSnapshot(status);
  EndSnapshot();
}

void Durability::AbandonSnapshot(const absl::Status& why) {
  // Another attempt soon, but not at once: what fails now would most likely fail again.
  next_snapshot_bytes_ = log_->statistics().written_bytes + options_.snapshot_bytes / 8;
  EndSnapshot();
  LogWarning(absl::StrCat("server ", server_.tables->server(),
                          ": the snapshot was abandoned, and the log goes on growing: ", why.message()));
}

void Durability::EndSnapshot() {
  running_.reset();
  snapshot_wanted_ = false;
  // Groups that were written while snapshot_wanted_ was set have begun none, and no other may come for long.
  SnapshotIfDue();
}

absl::Status Durability::Commit(Running* running) {
  // The records that the copied buckets contain must be durable before the log's beginning may go: a replay
  // begins at `position`. On a full disk the log may wait for the room that the unfinished snapshot takes.
  TANDEM_RETURN_IF_ERROR(log_->AwaitDurableUnlessFull());
  TANDEM_RETURN_IF_ERROR(running->writer->Commit());
  running->writer.reset();
  {
    absl::MutexLock lock(&mutex_);
    info_.set_snapshots(info_.snapshots() + 1);
    info_.set_snapshot_position(running->position);
    replayed_bytes_ = 0;
    bytes_at_snapshot_ = running->log_bytes_at_begin;
  }
  next_snapshot_bytes_ = running->log_bytes_at_begin + options_.snapshot_bytes;
  // The snapshot stands, whatever becomes of the files that it replaces: the next one removes them.
  const absl::Status removed = RemoveOld(running->position);
  if (!removed.ok()) {
    LogWarning(absl::StrCat("server ", server_.tables->server(), ": files that the snapshot at position ",
                            running->position, " replaces stay: ", removed.message()));
  }
  LogInfo(absl::StrCat("server ", server_.tables->server(), ": snapshot at position ", running->position));
  return absl::OkStatus();
}

absl::Status Durability::RemoveOld(uint64_t position) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<SnapshotName> snapshots,
                          ListSnapshots(*files_, options_.directory));
  TANDEM_RETURN_IF_ERROR(log_->RemoveUpTo(position));
  for (const SnapshotName& snapshot : snapshots) {
    if (snapshot.position < position) TANDEM_RETURN_IF_ERROR(files_->Remove(snapshot.path));
  }
  return absl::OkStatus();
}

absl::Status Durability::SnapshotNow() {
  running_.reset();  // one that was under way is of tables that have gone
  Running running(&server_);
  const v1::SnapshotState state = CaptureState(&running);
  const auto take = [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(running.writer, SnapshotWriter::Begin(files_, options_.directory, state));
    for (const uint32_t bucket : buckets_) {
      TANDEM_ASSIGN_OR_RETURN(std::vector<BucketCopy> copies, CopyBucket(running, bucket));
      for (BucketCopy& copy : copies) TANDEM_RETURN_IF_ERROR(running.writer->Add(std::move(copy)));
    }
    return Commit(&running);
  };
  const absl::Status status = take();
  if (!status.ok()) {
    log_->Fail(status);
    return status;
  }
  EndSnapshot();
  return absl::OkStatus();
}

}  // namespace tandem::ps
