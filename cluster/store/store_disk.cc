// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store_disk.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/checksummed_file.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "base/utf8.h"
#include "cluster/membership/incarnation.h"
#include "cluster/store/record.h"

namespace tandem::cluster {
namespace {

constexpr int kLockWaitMs = 5000;  // an earlier process may be ending
constexpr uint64_t kRewriteFrom = 4 << 20;
constexpr size_t kContentsRecordBytes = 1 << 20;  // about as much of the content goes into one record
constexpr size_t kSwitchBytes = 64 << 10;         // of records that are copied while no change can be made
constexpr absl::Duration kRewriteRetry = absl::Minutes(1);

// The kind of the first record of a log. Its field is the incarnation, little-endian.
constexpr char kIncarnation = 'I';
// The kinds of the membership's records: a member's name and its v1.LifeRecord; how the job has ended, as a
// v1.HeartbeatResponse.
constexpr char kLife = 'L';
constexpr char kEnd = 'E';

// The body of a log's record: a u32 size and the request id, then the record of record.h.
std::string Body(char kind, absl::Span<const absl::string_view> fields, absl::string_view request_id) {
  const uint32_t size = static_cast<uint32_t>(request_id.size());
  std::string body(reinterpret_cast<const char*>(&size), sizeof(size));
  absl::StrAppend(&body, request_id, MakeStoreRecord(kind, fields));
  return body;
}

std::string LifeBody(absl::string_view member, const v1::LifeRecord& life) {
  return Body(kLife, {member, life.SerializeAsString()}, {});
}

std::string EndBody(const JobState& end) {
  v1::HeartbeatResponse record;
  record.set_ended(end.ended);
  record.set_failed(end.failed);
  record.set_reason(ValidUtf8(end.reason));
  return Body(kEnd, {record.SerializeAsString()}, {});
}

// Splits off a u32 size and as many bytes; false if they are not there.
bool TakeSized(absl::string_view* from, absl::string_view* taken) {
  uint32_t size = 0;
  if (from->size() < sizeof(size)) return false;
  std::memcpy(&size, from->data(), sizeof(size));
  if (from->size() - sizeof(size) < size) return false;
  *taken = from->substr(sizeof(size), size);
  from->remove_prefix(sizeof(size) + size);
  return true;
}

}  // namespace

StoreDisk::StoreDisk(std::string directory, MemoryStore* store, std::function<void()> on_failure)
    : directory_(std::move(directory)), store_(store), on_failure_(std::move(on_failure)) {}

std::string StoreDisk::LogPath() const { return absl::StrCat(directory_, "/log"); }

absl::StatusOr<std::unique_ptr<StoreDisk>> StoreDisk::Open(const std::string& directory, MemoryStore* store,
                                                           std::function<void()> on_failure) {
  std::unique_ptr<StoreDisk> disk(new StoreDisk(directory, store, std::move(on_failure)));
  TANDEM_ASSIGN_OR_RETURN(disk->lock_, DirectoryLock::Take(directory, kLockWaitMs));
  ::unlink(absl::StrCat(disk->LogPath(), ".new").c_str());  // of a process that was killed
  TANDEM_RETURN_IF_ERROR(disk->ReadLog());
  store->SetJournal(disk.get());
  disk->syncing_ = std::thread([self = disk.get()] { self->RunSyncs(); });
  disk->rewriter_ = std::thread([self = disk.get()] { self->RunRewrites(); });
  return disk;
}

absl::Status StoreDisk::ReadLog() {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<FileLog> log,
                          FileLog::Open(LogPath(), MonotonicNow() + absl::Seconds(5)));
  TANDEM_RETURN_IF_ERROR(
      log->Read(/*exclusive=*/true, [this](absl::string_view body) { return Apply(body); }));
  if (incarnation_ == 0) {
    incarnation_ = NewIncarnation();
    TANDEM_RETURN_IF_ERROR(FirstRecord(log.get()));
  }
  // What a killed process has written, and this one has read, must not be lost any more either.
  TANDEM_RETURN_IF_ERROR(log->Sync());
  TANDEM_RETURN_IF_ERROR(SyncDirectory(directory_));
  absl::MutexLock lock(&mutex_);
  log_ = std::move(log);
  rewrite_at_ = kRewriteFrom;
  return absl::OkStatus();
}

absl::Status StoreDisk::FirstRecord(FileLog* log) const {
  const absl::string_view number(reinterpret_cast<const char*>(&incarnation_), sizeof(incarnation_));
  return log->Append(Body(kIncarnation, {number}, {}));
}

absl::Status StoreDisk::Apply(absl::string_view body) {
  absl::string_view request_id;
  const bool sized = TakeSized(&body, &request_id);
  const absl::StatusOr<ParsedStoreRecord> parsed =
      sized ? ParseStoreRecord(body) : absl::DataLossError("a record without a request id");
  if (parsed.ok()) {
    if (parsed->kind == kIncarnation && parsed->fields.size() == 1 &&
        parsed->fields[0].size() == sizeof(incarnation_)) {
      std::memcpy(&incarnation_, parsed->fields[0].data(), sizeof(incarnation_));
      return absl::OkStatus();
    }
    v1::LifeRecord life;
    v1::HeartbeatResponse end;
    if (parsed->kind == kLife && parsed->fields.size() == 2 &&
        life.ParseFromArray(parsed->fields[1].data(), static_cast<int>(parsed->fields[1].size()))) {
      absl::MutexLock lock(&mutex_);
      lives_[std::string(parsed->fields[0])] = std::move(life);
      return absl::OkStatus();
    }
    if (parsed->kind == kEnd && parsed->fields.size() == 1 &&
        end.ParseFromArray(parsed->fields[0].data(), static_cast<int>(parsed->fields[0].size()))) {
      absl::MutexLock lock(&mutex_);
      end_ = JobState{end.ended(), end.failed(), end.reason()};
      return absl::OkStatus();
    }
    const absl::StatusOr<bool> known = ApplyStoreRecord(*parsed, request_id, store_);
    if (!known.ok()) return Annotate(known.status(), absl::StrCat("reading store file '", LogPath(), "'"));
    if (*known) return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat("store file '", LogPath(), "' holds a record that this version does not know"));
}

void StoreDisk::Restore(LocalMembership* membership) {
  std::map<std::string, v1::LifeRecord, std::less<>> lives;
  std::optional<JobState> end;
  {
    absl::MutexLock lock(&mutex_);
    lives = lives_;
    end = end_;
  }
  membership->Restore(lives, end, this);
  membership_ = membership;
}

StoreDisk::~StoreDisk() {
  store_->SetJournal(nullptr);
  if (membership_ != nullptr) membership_->ForgetJournal();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (rewriter_.joinable()) rewriter_.join();
  if (syncing_.joinable()) syncing_.join();  // syncs what was written
}

absl::Status StoreDisk::Write(char kind, absl::Span<const absl::string_view> fields,
                              absl::string_view request_id) {
  const std::string body = Body(kind, fields, request_id);
  absl::MutexLock lock(&mutex_);
  return Append(body);
}

absl::Status StoreDisk::WriteLife(absl::string_view member, const v1::LifeRecord& life) {
  absl::MutexLock lock(&mutex_);
  TANDEM_RETURN_IF_ERROR(Append(LifeBody(member, life)));
  lives_[std::string(member)] = life;
  return absl::OkStatus();
}

absl::Status StoreDisk::WriteEnd(const JobState& end) {
  absl::MutexLock lock(&mutex_);
  TANDEM_RETURN_IF_ERROR(Append(EndBody(end)));
  end_ = end;
  return absl::OkStatus();
}

absl::Status StoreDisk::Append(const std::string& body) {
  if (!failure_.ok()) return failure_;
  if (absl::Status written = log_->Append(body); !written.ok()) {
    // The whole record may be there, and the next process would read it.
    if (absl::IsUnavailable(written)) Fail(written);
    return written;
  }
  ++written_;
  if (rewriting_) {
    const uint32_t size = static_cast<uint32_t>(body.size());
    meanwhile_.append(reinterpret_cast<const char*>(&size), sizeof(size));
    meanwhile_ += body;
  }
  return absl::OkStatus();
}

void StoreDisk::WhenSynced(std::function<void(const absl::Status&)> then) {
  absl::Status failed;
  {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok() && synced_ < written_) {
      waiting_.push_back({written_, std::move(then)});
      return;
    }
    failed = failure_;
  }
  then(failed);
}

absl::Status StoreDisk::failure() const {
  absl::MutexLock lock(&mutex_);
  return failure_;
}

uint64_t StoreDisk::log_bytes() const {
  absl::MutexLock lock(&mutex_);
  return log_->size();
}

void StoreDisk::Fail(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = absl::AbortedError(absl::StrCat("the disk of the job's store has failed: ", why.message()));
}

void StoreDisk::RunSyncs() {
  const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || synced_ < written_ || !failure_.ok();
  };
  bool told = false;
  absl::MutexLock lock(&mutex_);
  while (true) {
    mutex_.Await(absl::Condition(&work));
    if (failure_.ok() && synced_ < written_) {
      const uint64_t target = written_;
      const std::shared_ptr<FileLog> log = log_;
      mutex_.Unlock();
      const absl::Status synced = log->Sync();
      mutex_.Lock();
      // A rewritten log has been synced itself.
      if (!synced.ok() && log == log_) Fail(synced);
      if (failure_.ok()) synced_ = std::max(synced_, target);
    }
    std::vector<Waiting> done, later;
    for (Waiting& one : waiting_) {
      (!failure_.ok() || one.number <= synced_ ? done : later).push_back(std::move(one));
    }
    waiting_ = std::move(later);
    const absl::Status failed = failure_;
    const bool end = stopping_ && (!failed.ok() || synced_ == written_);
    mutex_.Unlock();
    for (Waiting& one : done) one.then(failed);
    if (!failed.ok() && !std::exchange(told, true)) {
      LogError(failed.message());
      if (on_failure_) on_failure_();
    }
    mutex_.Lock();
    if (end) return;
    const auto stops = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !waiting_.empty(); };
    if (!failed.ok()) mutex_.Await(absl::Condition(&stops));
  }
}

void StoreDisk::RunRewrites() {
  const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || (failure_.ok() && log_->size() >= rewrite_at_);
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&work));
      if (stopping_) return;
    }
    const absl::Status rewritten = Rewrite();
    if (rewritten.ok()) continue;
    LogWarning(absl::StrCat("the store's log cannot be rewritten, and grows: ", rewritten.message()));
    absl::MutexLock lock(&mutex_);
    if (AwaitFor(&mutex_, absl::Condition(&stopping_), kRewriteRetry)) return;
  }
}

std::vector<std::string> StoreDisk::MembershipRecords() const {
  std::vector<std::string> records;
  for (const auto& [member, life] : lives_) records.push_back(LifeBody(member, life));
  if (end_.has_value()) records.push_back(EndBody(*end_));
  return records;
}

absl::Status StoreDisk::WriteContents(const StoreContents& contents, const std::vector<std::string>& members,
                                      FileLog* log) const {
  TANDEM_RETURN_IF_ERROR(FirstRecord(log));
  for (const std::string& record : members) TANDEM_RETURN_IF_ERROR(log->Append(record));
  std::vector<absl::string_view> fields;
  size_t bytes = 0;
  for (const auto& [key, value] : contents.values) {
    fields.insert(fields.end(), {key, value});
    bytes += key.size() + value.size();
    if (bytes < kContentsRecordBytes) continue;
    TANDEM_RETURN_IF_ERROR(log->Append(Body(kStoreSet, fields, {})));
    fields.clear();
    bytes = 0;
  }
  if (!fields.empty()) TANDEM_RETURN_IF_ERROR(log->Append(Body(kStoreSet, fields, {})));
  for (const auto& [queue, item] : contents.items) {
    TANDEM_RETURN_IF_ERROR(log->Append(Body(kStorePush, {queue, item}, {})));
  }
  for (const auto& [id, answer] : contents.answers) {
    TANDEM_RETURN_IF_ERROR(log->Append(Body(kStoreAnswer, {id, answer}, {})));
  }
  return log->Sync();
}

absl::Status StoreDisk::Rewrite() {
  const std::string path = absl::StrCat(LogPath(), ".new");
  std::vector<std::string> members;
  const StoreContents contents = store_->Contents([&] {
    absl::MutexLock lock(&mutex_);
    rewriting_ = true;
    members = MembershipRecords();
  });
  const auto give_up = [&](absl::Status why) {
    ::unlink(path.c_str());
    absl::MutexLock lock(&mutex_);
    rewriting_ = false;
    meanwhile_.clear();
    return why;
  };
  absl::StatusOr<std::unique_ptr<FileLog>> opened = FileLog::Open(path, MonotonicNow() + absl::Seconds(5));
  if (!opened.ok()) return give_up(opened.status());
  const std::shared_ptr<FileLog> log = *std::move(opened);
  if (absl::Status written = WriteContents(contents, members, log.get()); !written.ok())
    return give_up(written);
  const uint64_t bytes = log->size();
  const auto append = [&](absl::string_view records) -> absl::Status {
    absl::string_view body;
    while (TakeSized(&records, &body)) TANDEM_RETURN_IF_ERROR(log->Append(body));
    return log->Sync();
  };
  // What was changed meanwhile comes without the lock, too, until little is left.
  for (int round = 0; round < 8; ++round) {
    std::string records;
    {
      absl::MutexLock lock(&mutex_);
      if (meanwhile_.size() <= kSwitchBytes) break;
      records = std::exchange(meanwhile_, std::string());
    }
    if (absl::Status written = append(records); !written.ok()) return give_up(written);
  }
  absl::Status switched;
  {
    absl::MutexLock lock(&mutex_);
    switched = failure_;
    if (switched.ok()) switched = append(meanwhile_);
    if (switched.ok()) switched = log->MoveTo(LogPath());
    if (switched.ok()) {
      rewriting_ = false;
      meanwhile_.clear();
      log_ = log;
      rewrite_at_ = std::max(kRewriteFrom, 2 * bytes);
      const absl::Status renamed = SyncDirectory(directory_);
      if (renamed.ok()) synced_ = written_;
      if (!renamed.ok()) Fail(renamed);
    }
  }
  return switched.ok() ? switched : give_up(switched);
}

}  // namespace tandem::cluster
