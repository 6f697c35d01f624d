// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/stream_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace tandem::rpc::remote {
bool StreamState::HasRoom() const {
  return stop_.stop_requested() || out_.empty() ||
         (out_.size() < kStreamWindow && out_bytes_ < kStreamWindowBytes);
}

bool StreamState::CanRead() const { return stop_.stop_requested() || !in_.empty() || in_ended_; }

bool StreamState::WindowIsFull() const {
  return in_.size() >= kStreamWindow || in_bytes_ >= kStreamWindowBytes;
}

std::optional<StreamItem> StreamState::Read() {
  std::optional<StreamItem> item;
  std::vector<Promise<void>> acknowledged;
  {
    absl::MutexLock lock(&mutex_, absl::Condition(this, &StreamState::CanRead));
    if (stop_.stop_requested() || in_.empty()) return std::nullopt;
    item = std::move(in_.front());
    in_.pop_front();
    in_bytes_ -= item->bytes();
    if (!WindowIsFull()) acknowledged.swap(unacknowledged_);
  }
  for (const Promise<void>& promise : acknowledged) promise.Set(absl::OkStatus());
  return item;
}

std::optional<StreamBatch> StreamState::BatchFrom(uint64_t first) {
  // The client has all items before `first`.
  while (!out_.empty() && out_first_ < first) {
    out_bytes_ -= out_.front().bytes();
    out_.pop_front();
    ++out_first_;
  }
  if (out_.empty() && !end_.has_value()) return std::nullopt;
  StreamBatch batch;
  batch.items.assign(out_.begin(), out_.end());
  if (end_.has_value()) {
    batch.ended = true;
    batch.code = static_cast<int32_t>(end_->code());
    batch.error = std::string(end_->message());
  }
  return batch;
}

absl::Status StreamState::Write(StreamItem item) {
  std::optional<StreamBatch> batch;
  std::optional<Promise<StreamBatch>> asked;
  {
    absl::MutexLock lock(&mutex_, absl::Condition(this, &StreamState::HasRoom));
    if (stop_.stop_requested())
      return absl::CancelledError("the client of the stream is gone, or has cancelled it");
    out_bytes_ += item.bytes();
    out_.push_back(std::move(item));
    if (pending_read_.has_value() && (batch = BatchFrom(pending_read_->first)).has_value()) {
      asked = std::move(pending_read_->second);
      pending_read_.reset();
    }
  }
  if (asked.has_value()) asked->Set(*std::move(batch));
  return absl::OkStatus();
}

void StreamState::Finish(absl::Status status) {
  std::optional<StreamBatch> batch;
  std::optional<Promise<StreamBatch>> asked;
  std::vector<Promise<void>> writes;
  {
    absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = std::move(status);
    writes.swap(unacknowledged_);
    in_.clear();
    in_bytes_ = 0;
    in_ended_ = true;
    if (pending_read_.has_value() && (batch = BatchFrom(pending_read_->first)).has_value()) {
      asked = std::move(pending_read_->second);
      pending_read_.reset();
    }
  }
  if (asked.has_value()) asked->Set(*std::move(batch));
  for (const Promise<void>& promise : writes) promise.Set(absl::OkStatus());
}

Future<StreamBatch> StreamState::OnRead(uint64_t first) {
  Promise<StreamBatch> promise;
  std::optional<Promise<StreamBatch>> repeated;
  std::optional<StreamBatch> batch;
  {
    absl::MutexLock lock(&mutex_);
    contact_ = MonotonicNow();
    if (pending_read_.has_value()) repeated = std::move(pending_read_->second);
    pending_read_.reset();
    batch = BatchFrom(first);
    if (!batch.has_value()) pending_read_.emplace(first, promise);
  }
  if (repeated.has_value()) repeated->Set(absl::AbortedError("the question was asked again"));
  if (batch.has_value()) promise.Set(*std::move(batch));
  return promise.future();
}

Future<void> StreamState::OnWrite(uint64_t first, std::vector<StreamItem> items, bool last) {
  Promise<void> promise;
  {
    absl::MutexLock lock(&mutex_);
    contact_ = MonotonicNow();
    if (stop_.stop_requested()) return Future<void>::Ready(absl::CancelledError("the stream is over"));
    if (first > in_next_)
      return Future<void>::Ready(absl::InvalidArgumentError("items of the stream are missing"));
    if (items.empty() && !last) return Future<void>::Ready(absl::OkStatus());  // only says: alive
    const uint64_t known = in_next_ - first;
    in_next_ = std::max(in_next_, first + items.size());
    // After the end the items are dropped, but they count: the client sends the ones after them next.
    if (!end_.has_value()) {
      for (size_t i = known; i < items.size(); ++i) {
        in_bytes_ += items[i].bytes();
        in_.push_back(std::move(items[i]));
      }
      in_ended_ = in_ended_ || last;
      if (WindowIsFull()) {
        unacknowledged_.push_back(promise);
        return promise.future();
      }
    }
  }
  promise.Set(absl::OkStatus());
  return promise.future();
}

void StreamState::Cancel(absl::Status why) {
  {
    absl::MutexLock lock(&mutex_);
    if (stop_.stop_requested()) return;
    if (!end_.has_value()) end_ = why;
    in_ended_ = true;
  }
  stop_.request_stop();
  Finish(std::move(why));  // releasing its lock wakes Read and Write
}

absl::Time StreamState::last_contact() const {
  absl::MutexLock lock(&mutex_);
  return contact_;
}

void StreamTable::AddFunctions(Functions* functions) {
  const ServeOptions quick = {.run_inline = true};
  functions->Add(
      kStreamRead,
      [this](uint64_t number, uint64_t first) -> absl::StatusOr<Future<StreamBatch>> {
        TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> stream, Find(number));
        return stream->OnRead(first);
      },
      quick);
  functions->Add(
      kStreamWrite,
      [this](uint64_t number, uint64_t first, std::vector<StreamItem> items,
             bool last) -> absl::StatusOr<Future<void>> {
        TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<StreamState> stream, Find(number));
        return stream->OnWrite(first, std::move(items), last);
      },
      quick);
  functions->Add(
      kStreamCancel,
      [this](uint64_t number) {
        const auto stream = Find(number);
        if (!stream.ok()) return;
        (*stream)->Cancel(absl::CancelledError("the client cancelled the stream"));
        absl::MutexLock lock(&mutex_);
        streams_.erase(number);
      },
      quick);
}

std::pair<uint64_t, std::shared_ptr<StreamState>> StreamTable::Open() {
  auto stream = std::make_shared<StreamState>();
  uint64_t number;
  bool closed;
  {
    absl::MutexLock lock(&mutex_);
    number = ++last_;
    closed = closed_;
    if (!closed) streams_[number] = stream;
  }
  if (closed) stream->Cancel(absl::UnavailableError("the worker is shutting down"));
  return {number, std::move(stream)};
}

absl::StatusOr<std::shared_ptr<StreamState>> StreamTable::Find(uint64_t number) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(number);
  if (found != streams_.end()) return found->second;
  return absl::NotFoundError(absl::StrCat("there is no stream ", number,
                                          ": it is over, or its client was silent for ",
                                          absl::FormatDuration(kStreamSilence)));
}

void StreamTable::RunMaintenance() {
  std::vector<std::shared_ptr<StreamState>> silent;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time oldest = MonotonicNow() - kStreamSilence;
    for (auto stream = streams_.begin(); stream != streams_.end();) {
      if (stream->second->last_contact() > oldest) {
        ++stream;
        continue;
      }
      silent.push_back(std::move(stream->second));
      streams_.erase(stream++);
    }
  }
  for (const auto& stream : silent) {
    stream->Cancel(absl::CancelledError(
        absl::StrCat("the client of the stream was silent for ", absl::FormatDuration(kStreamSilence))));
  }
}

void StreamTable::CancelAll() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<StreamState>> streams;
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    streams.swap(streams_);
  }
  for (const auto& [number, stream] : streams)
    stream->Cancel(absl::UnavailableError("the worker is shutting down"));
}

}  // namespace tandem::rpc::remote
