// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/shipped_log.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::ps {

ShippedLog::ShippedLog(Options options, LogTail tail)
    : ChangeLog(options.max_queued_bytes),
      options_(std::move(options)),
      last_position_(options_.first_position - 1),
      wait_set_(options_.min_copies),
      tail_(std::move(tail)),
      tail_until_(absl::InfinitePast()) {
  absl::MutexLock lock(&mutex_);
  if (options_.base.term != 0) {
    tail_.SetMaxBytes(options_.max_tail_bytes);
    tail_until_ = MonotonicNow() + options_.keep_tail;
  }
  durable_position_ = wait_set_.Durable(last_position_);
  thread_ = std::thread([this] { Run(); });
}

ShippedLog::~ShippedLog() { Stop(); }

void ShippedLog::Stop() {
  StopSpace();
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    stopping_ = true;
    status_ = absl::UnavailableError("this server is not the primary of its shard any more, or is stopping");
    for (const std::shared_ptr<Link>& link : links_) {
      link->dropped = true;
      dropped_.push_back(link);
    }
    links_.clear();
  }
  thread_.join();
  std::deque<Waiting> waiting;
  std::vector<std::shared_ptr<Link>> dropped;
  std::vector<LinkStream::Sent> sent;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    waiting.swap(waiting_);
    dropped.swap(dropped_);
    status = status_;
    for (Entry& entry : queue_) {
      if (entry.sent) sent.push_back(std::move(entry.sent));
    }
    queue_.clear();
    for (const std::shared_ptr<Link>& link : dropped) link->stream.Abandon(&sent);
    tail_.Restart(last_position_);
  }
  buffers_ = BufferPool();  // only the thread, which has ended, has used it
  for (const std::shared_ptr<Link>& link : dropped) link->channel.reset();  // ends its calls
  for (const LinkStream::Sent& one : sent) one(status);
  for (const Waiting& one : waiting) {
    if (one.durable) one.durable(status);
  }
}

void ShippedLog::RunAll(const After& after) {
  for (const std::function<void()>& function : after) function();
}

// The wait set.

absl::Status ShippedLog::Require(const std::string& id) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<Link> link, LinkOfLocked(id));
    wait_set_.Require(id, link->stored_position);
    link->caught_up = false;
    StoredLocked(link, &after);
  }
  RunAll(after);
  return absl::OkStatus();
}

void ShippedLog::Release(const std::string& id) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    wait_set_.Release(id);
    if (const std::shared_ptr<Link> link = FindLocked(id); link != nullptr) link->caught_up = true;
    AdvanceLocked(&after);
  }
  RunAll(after);
}

void ShippedLog::Confirm(size_t in_sync) {
  After after;
  {
    absl::MutexLock lock(&mutex_);
    wait_set_.Confirm(in_sync);
    confirmed_ = in_sync;
    AdvanceLocked(&after);
  }
  RunAll(after);
}

void ShippedLog::AdvanceLocked(After* after) {
  if (stopping_) return;
  durable_position_ = std::max(durable_position_, wait_set_.Durable(last_position_));
  if (!waiting_.empty() && waiting_.front().position <= durable_position_) waiting_since_ = MonotonicNow();
  while (!waiting_.empty() && waiting_.front().position <= durable_position_) {
    after->push_back([one = std::move(waiting_.front())] {
      if (one.durable) one.durable(absl::OkStatus());
    });
    waiting_.pop_front();
  }
}

// The ChangeLog.

uint64_t ShippedLog::Append(RecordKind kind, Bytes body, std::shared_ptr<Space> space, Durable durable) {
  uint64_t position;
  absl::Status now;  // with which `durable` runs here, if that is known
  bool known = true;
  {
    absl::MutexLock lock(&mutex_);
    position = ++last_position_;
    now = status_;
    if (now.ok()) {
      // Without a link nobody needs the record, unless a follower of the earlier primary comes.
      if (!links_.empty() || tail_until_ > absl::InfinitePast())
        queue_.push_back({.kind = kind, .position = position, .body = std::move(body)});
      known = waiting_.empty() && wait_set_.Durable(position) >= position;
      if (known) {
        durable_position_ = position;
      } else {
        if (waiting_.empty()) waiting_since_ = MonotonicNow();
        waiting_.push_back({position, std::move(space), std::move(durable)});
      }
    }
  }
  if (known && durable) durable(now);
  return position;
}

void ShippedLog::WhenDurable(Durable durable) {
  absl::Status now;
  {
    absl::MutexLock lock(&mutex_);
    now = status_;
    if (now.ok() && durable_position_ < last_position_) {
      if (waiting_.empty()) waiting_since_ = MonotonicNow();
      waiting_.push_back({last_position_, nullptr, std::move(durable)});
      return;
    }
  }
  durable(now);
}

uint64_t ShippedLog::last_position() const {
  absl::MutexLock lock(&mutex_);
  return last_position_;
}

uint64_t ShippedLog::durable_position() const {
  absl::MutexLock lock(&mutex_);
  return durable_position_;
}

absl::Status ShippedLog::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

std::string ShippedLog::waiting_for() const {
  const absl::Time now = MonotonicNow();
  absl::MutexLock lock(&mutex_);
  if (waiting_.empty() || now - waiting_since_ < options_.unusual) return "";
  if (confirmed_ + 1 < static_cast<size_t>(options_.min_copies)) {
    return absl::StrCat(confirmed_, " followers are in sync, and a push needs ", options_.min_copies,
                        " copies (--min-copies)");
  }
  const Link* slowest = nullptr;
  for (const std::shared_ptr<Link>& link : links_) {
    if (!wait_set_.IsRequired(link->copy.id) || link->stored_position >= last_position_) continue;
    if (slowest == nullptr || link->stored_position < slowest->stored_position) slowest = link.get();
  }
  if (slowest == nullptr) {
    return options_.min_copies > 1 ? "a follower is dead or cut off, and --min-copies needs another one"
                                   : "a follower that has gone is being removed";
  }
  return absl::StrCat("the follower at ", slowest->copy.address, " has stored record ",
                      slowest->stored_position, " of ", last_position_, ", and answered last ",
                      absl::FormatDuration(absl::Trunc(now - slowest->heard, absl::Milliseconds(1))), " ago");
}

}  // namespace tandem::ps
