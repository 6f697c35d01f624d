// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/client_stream.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "rpc/remote/rpc_agent.h"

namespace tandem::rpc::remote {
namespace {

// Half a window: requested items arrive before the present ones are used up.
constexpr size_t kRequestBelow = kStreamWindow / 2;

// The call reached its own timeout, or was replaced by a repeated one: the stream goes on.
bool ShouldRepeat(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
}

}  // namespace

bool ClientStreamCore::ShouldRequestItems() const {
  return !read_pending_ && !end_.has_value() && in_.size() < kRequestBelow;
}

void ClientStreamCore::Begin() { RequestItems(); }

absl::Status ClientStreamCore::CheckServer(RpcAgent* agent) const {
  if (agent == nullptr) return AgentHasShutDown();
  const std::optional<Member> now = agent->directory().Find(server_.name);
  if (now.has_value() && now->incarnation == server_.incarnation) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      what_, ": its server has left, or was silent for longer than its lease and counts as dead"));
}

void ClientStreamCore::RequestItems() {
  uint64_t first;
  bool request;
  {
    absl::MutexLock lock(&mutex_);
    request = ShouldRequestItems();
    if (request) {
      read_pending_ = true;
    } else if (read_pending_ || end_.has_value() || std::exchange(keep_alive_scheduled_, true)) {
      return;
    }
    first = in_next_;
  }
  if (!request) return ScheduleKeepAlive();
  const absl::Duration left = deadline_ - MonotonicNow();
  const References::Use use(references_.get());
  if (absl::Status there = CheckServer(use.agent()); !there.ok()) return OnBatch(first, std::move(there));
  if (left <= absl::ZeroDuration()) {
    return OnBatch(first, absl::OutOfRangeError("the stream's time is over (CallSettings::timeout)"));
  }
  use.agent()
      ->RpcAsync(CallTarget(server_.name, {.timeout = std::min(left, kStreamPoll)}), kStreamRead, number_,
                 first)
      .Then([self = shared_from_this(), first](const absl::StatusOr<StreamBatch>& batch) {
        self->OnBatch(first, batch);
      });
}

void ClientStreamCore::ScheduleKeepAlive() {
  const References::Use use(references_.get());
  if (use.agent() == nullptr) return;
  use.agent()->RunAfter(kStreamKeepAlive, [weak = weak_from_this()] {
    if (const std::shared_ptr<ClientStreamCore> self = weak.lock()) self->KeepAlive();
  });
}

void ClientStreamCore::KeepAlive() {
  uint64_t first;
  {
    absl::MutexLock lock(&mutex_);
    keep_alive_scheduled_ = !read_pending_ && !end_.has_value();
    if (!keep_alive_scheduled_) return;
    first = out_next_;
  }
  {
    const References::Use use(references_.get());
    if (use.agent() == nullptr) return;
    use.agent()->RpcAsync(CallTarget(server_.name, {.timeout = kStreamPoll}), kStreamWrite, number_, first,
                          std::vector<StreamItem>(), false);
  }
  ScheduleKeepAlive();
}

void ClientStreamCore::OnBatch(uint64_t first, absl::StatusOr<StreamBatch> batch) {
  bool release = false;
  std::unique_ptr<CountedCall> over;  // destroyed without the lock: other threads may wait for it
  {
    absl::MutexLock lock(&mutex_);
    read_pending_ = false;
    if (batch.ok()) {
      for (size_t i = in_next_ - first; i < batch->items.size(); ++i)
        in_.push_back(std::move(batch->items[i]));
      in_next_ = std::max(in_next_, first + batch->items.size());
      if (batch->ended && !end_.has_value()) {
        end_ = Annotate(absl::Status(static_cast<absl::StatusCode>(batch->code), batch->error), what_);
        release = true;
      }
    } else if (!ShouldRepeat(batch.status()) && !end_.has_value()) {
      end_ = batch.status();
      if (absl::IsOutOfRange(*end_)) end_ = absl::DeadlineExceededError(end_->message());
      release = true;
    }
    if (release) over.swap(counted_);
  }
  if (!release) return RequestItems();
  // Tells the server that it can drop the stream.
  const References::Use use(references_.get());
  if (use.agent() != nullptr)
    use.agent()->RpcAsync(CallTarget(server_.name, {.timeout = kStreamPoll}), kStreamCancel, number_);
}

absl::StatusOr<std::optional<StreamItem>> ClientStreamCore::Read() {
  std::optional<StreamItem> item;
  {
    absl::MutexLock lock(&mutex_);
    const auto there = [this]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !in_.empty() || end_.has_value(); };
    mutex_.Await(absl::Condition(&there));
    if (in_.empty()) {
      if (end_->ok()) return item;
      return *end_;
    }
    item = std::move(in_.front());
    in_.pop_front();
    if (!ShouldRequestItems()) return item;
  }
  RequestItems();
  return item;
}

absl::Status ClientStreamCore::Write(StreamItem item) {
  mutex_.Lock();
  const auto room = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    if (end_.has_value() || writes_end_.has_value() || out_.empty()) return true;
    size_t bytes = 0;
    for (const StreamItem& each : out_) bytes += each.bytes();
    return out_.size() < kStreamWindow && bytes < kStreamWindowBytes;
  };
  mutex_.Await(absl::Condition(&room));
  if (end_.has_value() || writes_end_.has_value()) {
    const bool fine = !end_.has_value() || end_->ok();
    const absl::Status end = fine ? absl::CancelledError("the server has ended the stream") : *end_;
    mutex_.Unlock();
    return end;
  }
  if (out_ended_) {
    mutex_.Unlock();
    return absl::FailedPreconditionError("the stream was written to after EndWrites");
  }
  out_.push_back(std::move(item));
  SendNext();
  return absl::OkStatus();
}

absl::Status ClientStreamCore::EndWrites() {
  mutex_.Lock();
  out_ended_ = true;
  SendNext();
  absl::MutexLock lock(&mutex_);
  const auto sent = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return end_.has_value() || writes_end_.has_value() || (end_sent_ && !sending_now_);
  };
  mutex_.Await(absl::Condition(&sent));
  return end_.has_value() ? *end_ : writes_end_.value_or(absl::OkStatus());
}

void ClientStreamCore::SendNext() {
  if (sending_now_ || end_.has_value() || writes_end_.has_value() ||
      (out_.empty() && (!out_ended_ || end_sent_))) {
    mutex_.Unlock();
    return;
  }
  sending_now_ = true;
  if (sending_.empty()) sending_.swap(out_);
  const bool last = out_ended_ && out_.empty();
  end_sent_ = last;
  std::vector<StreamItem> items = sending_;
  const uint64_t first = out_next_;
  mutex_.Unlock();
  const References::Use use(references_.get());
  if (absl::Status there = CheckServer(use.agent()); !there.ok()) return OnSent(std::move(there));
  use.agent()
      ->RpcAsync(CallTarget(server_.name, {.timeout = kStreamPoll}), kStreamWrite, number_, first,
                 std::move(items), last)
      .Then([self = shared_from_this()](const absl::Status& status) { self->OnSent(status); });
}

void ClientStreamCore::OnSent(absl::Status status) {
  std::unique_ptr<CountedCall> over;  // destroyed without the lock
  mutex_.Lock();
  sending_now_ = false;
  if (status.ok()) {
    out_next_ += sending_.size();
    sending_.clear();
  } else if (ShouldRepeat(status)) {
    end_sent_ = false;
    if (out_.empty() && !sending_.empty()) out_.swap(sending_);  // sent again with the same numbers
  } else if (absl::IsCancelled(status) || absl::IsNotFound(status)) {
    writes_end_ = std::move(status);  // the response to the pending read tells the reason
  } else if (!end_.has_value()) {
    end_ = std::move(status);
    over.swap(counted_);
  }
  SendNext();
}

void ClientStreamCore::Cancel(absl::Status why) {
  std::unique_ptr<CountedCall> over;  // destroyed without the lock
  {
    absl::MutexLock lock(&mutex_);
    if (end_.has_value()) return;
    end_ = std::move(why);
    over.swap(counted_);
  }
  const References::Use use(references_.get());
  if (use.agent() != nullptr)
    use.agent()->RpcAsync(CallTarget(server_.name, {.timeout = kStreamPoll}), kStreamCancel, number_);
}

}  // namespace tandem::rpc::remote
