// SPDX-License-Identifier: Apache-2.0
#include "ps/log/push_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::ps {
namespace {

// The thread writes at most about this much at a time, so that the first pushes of a long queue need not wait
// for the last.
constexpr uint64_t kMaxGroupBytes = uint64_t{8} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<PushLog>> PushLog::Open(const Options& options, uint64_t first_position) {
  std::unique_ptr<PushLog> log(new PushLog(options));
  {
    absl::MutexLock lock(&log->mutex_);
    log->last_position_ = log->durable_position_ = first_position - 1;
  }
  const absl::Status made = log->MakeSegment(first_position, 0);
  if (absl::IsResourceExhausted(made)) {
    LogWarning(absl::StrCat("the first push will wait until the log has room: ", made.message()));
  } else {
    TANDEM_RETURN_IF_ERROR(made);
  }
  log->thread_ = std::thread([log = log.get()] { log->Run(); });
  return log;
}

PushLog::~PushLog() { Stop(); }

void PushLog::Stop() {
  StopSpace();  // the code that has deferred pushes ends those that wait
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

uint64_t PushLog::Append(RecordKind kind, Bytes body, std::shared_ptr<Space> space, Durable durable) {
  absl::Status failed;
  uint64_t position;
  {
    absl::MutexLock lock(&mutex_);
    position = ++last_position_;
    failed = status_;
    if (failed.ok()) {
      queue_.push_back({kind, true, position, std::move(body), std::move(space), std::move(durable)});
    }
  }
  if (!failed.ok() && durable) durable(failed);
  return position;
}

void PushLog::WhenDurable(Durable durable) {
  absl::Status failed;
  {
    absl::MutexLock lock(&mutex_);
    failed = status_;
    if (failed.ok() && durable_position_ < last_position_) {
      queue_.push_back({RecordKind::kPush, false, last_position_, Bytes(), nullptr, std::move(durable)});
      return;
    }
  }
  durable(failed);
}

absl::Status PushLog::AwaitDurableUnlessFull() {
  absl::MutexLock lock(&mutex_);
  const uint64_t position = last_position_;
  const auto over = [this, position]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return durable_position_ >= position || !status_.ok() || !waiting_for_.empty();
  };
  mutex_.Await(absl::Condition(&over));
  if (durable_position_ >= position) return absl::OkStatus();
  return status_.ok() ? absl::ResourceExhaustedError(waiting_for_) : status_;
}

uint64_t PushLog::last_position() const {
  absl::MutexLock lock(&mutex_);
  return last_position_;
}

absl::Status PushLog::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

std::string PushLog::waiting_for() const {
  absl::MutexLock lock(&mutex_);
  return waiting_for_;
}

PushLog::Statistics PushLog::statistics() const {
  absl::MutexLock lock(&mutex_);
  Statistics statistics = statistics_;
  statistics.durable_position = durable_position_;
  statistics.waits = space_waits();
  return statistics;
}

void PushLog::Fail(const absl::Status& why) {
  std::deque<Entry> dropped;
  bool tell = false;
  {
    absl::MutexLock lock(&mutex_);
    tell = status_.ok() && !stopping_;
    if (status_.ok()) {
      // Clients repeat the push, perhaps to the server's next life.
      status_ = absl::UnavailableError(
          absl::StrCat("the log in ", options_.directory, " takes no more records: ", why.message()));
    }
    dropped.swap(queue_);
  }
  const absl::Status status = this->status();
  for (Entry& entry : dropped) {
    if (entry.durable) entry.durable(status);
  }
  if (tell && options_.on_failure) options_.on_failure(status);
}

void PushLog::Run() {
  while (true) {
    std::deque<Entry> group;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &PushLog::HasWork));
      if (queue_.empty()) break;
      uint64_t bytes = 0;
      while (!queue_.empty() && bytes < kMaxGroupBytes) {
        bytes += RecordBytes(queue_.front().body.size());
        group.push_back(std::move(queue_.front()));
        queue_.pop_front();
      }
    }
    absl::Status written = Write(group);
    if (written.ok()) {
      absl::MutexLock lock(&mutex_);
      if (status_.ok()) durable_position_ = std::max(durable_position_, group.back().position);
      written = status_;  // Fail may have been called meanwhile
    } else {
      Fail(written);
      written = status();
    }
    for (Entry& entry : group) {
      if (entry.durable) entry.durable(written);
      entry.space.reset();
    }
    if (options_.on_group) options_.on_group();
  }
  Fail(absl::CancelledError("the server is stopping"));
}

absl::Status PushLog::Write(const std::deque<Entry>& group) {
  buffer_.clear();
  uint64_t durable;
  {
    absl::MutexLock lock(&mutex_);
    if (!status_.ok()) return status_;
    durable = durable_position_;
  }
  uint64_t records = 0;
  for (const Entry& entry : group) {
    if (!entry.record) continue;
    ++records;
    const uint64_t bytes = RecordBytes(entry.body.size());
    if (offset_ + buffer_.size() + bytes > file_bytes_) {
      TANDEM_RETURN_IF_ERROR(WriteBuffer());
      TANDEM_RETURN_IF_ERROR(NextSegment(entry.position, bytes));
    }
    AppendRecord(entry.kind, entry.position, durable, entry.body, &buffer_);
  }
  if (records == 0) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(WriteBuffer());
  double seconds = 0;
  if (options_.sync) {
    const absl::Time begin = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(file_->Sync());
    seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
  }
  absl::MutexLock lock(&mutex_);
  ++statistics_.groups;
  statistics_.longest_sync_s = std::max(statistics_.longest_sync_s, seconds);
  return absl::OkStatus();
}

absl::Status PushLog::WriteBuffer() {
  if (buffer_.empty()) return absl::OkStatus();
  TANDEM_RETURN_IF_ERROR(file_->WriteAt(offset_, buffer_));
  offset_ += buffer_.size();
  {
    absl::MutexLock lock(&mutex_);
    statistics_.written_bytes += buffer_.size();
  }
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status PushLog::NextSegment(uint64_t first_position, uint64_t bytes) {
  // The next segment tells readers that this one is whole.
  if (options_.sync && file_ != nullptr) TANDEM_RETURN_IF_ERROR(file_->Sync());
  while (true) {
    absl::Status made = MakeSegment(first_position, bytes);
    if (!absl::IsResourceExhausted(made)) {
      BlockSpace(false);
      absl::MutexLock lock(&mutex_);
      waiting_for_.clear();
      return made;
    }
    BlockSpace(true);
    absl::MutexLock lock(&mutex_);
    if (waiting_for_.empty()) {
      LogWarning(absl::StrCat("pushes wait until the log has room: ", made.message()));
    }
    waiting_for_ = std::string(made.message());
    if (AwaitFor(&mutex_, absl::Condition(&stopping_), options_.retry) || !status_.ok()) return made;
  }
}

absl::Status PushLog::MakeSegment(uint64_t first_position, uint64_t bytes) {
  v1::LogSegmentHeader header = options_.header;
  header.set_first_position(first_position);
  const std::string start = SegmentStart(header);
  const uint64_t size = std::max(options_.segment_bytes, start.size() + bytes);
  const std::string path = absl::StrCat(options_.directory, "/", SegmentName(first_position, header.term()));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<LogFile> file, options_.files->Create(path, size));
  TANDEM_RETURN_IF_ERROR(file->WriteAt(0, start));
  // Also of a log without syncs: after the machine was started again, the beginning says that the end may be
  // lost, and a segment that is not there could not.
  TANDEM_RETURN_IF_ERROR(file->Sync());
  TANDEM_RETURN_IF_ERROR(options_.files->SyncDirectory(options_.directory));
  file_ = std::move(file);
  file_bytes_ = size;
  offset_ = start.size();
  absl::MutexLock lock(&mutex_);
  segments_.push_back({first_position, path});
  return absl::OkStatus();
}

void PushLog::AddOldSegment(uint64_t first_position, std::string path) {
  absl::MutexLock lock(&mutex_);
  const auto at = std::find_if(segments_.begin(), segments_.end(), [&](const Segment& segment) {
    return segment.first_position >= first_position;
  });
  segments_.insert(at, {first_position, std::move(path)});
}

absl::Status PushLog::RemoveUpTo(uint64_t position) {
  bool removed = false;
  while (true) {
    std::string oldest;
    {
      absl::MutexLock lock(&mutex_);
      if (segments_.size() < 2 || segments_[1].first_position > position + 1) break;
      oldest = segments_.front().path;
    }
    // The oldest first: a log whose beginning is missing is still whole behind the snapshot.
    TANDEM_RETURN_IF_ERROR(options_.files->Remove(oldest));
    removed = true;
    absl::MutexLock lock(&mutex_);
    segments_.erase(segments_.begin());
  }
  return removed ? options_.files->SyncDirectory(options_.directory) : absl::OkStatus();
}

}  // namespace tandem::ps
