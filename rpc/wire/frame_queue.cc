// SPDX-License-Identifier: Apache-2.0
#include "rpc/wire/frame_queue.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "rpc/wire/batch.h"
#include "rpc/wire/bulk_codec.h"
#include "rpc/wire/frame.h"

namespace tandem::rpc {
namespace {

// Approximate memory of a queued message in addition to its bytes.
constexpr size_t kMessageOverhead = 256;
static_assert(ResponseSource::kMinChunk <= kFramePayload);

// A chunk that would leave less than half a frame includes the rest: a frame of few bytes costs as much as a
// call.
size_t ChunkOf(size_t rest) { return rest <= kFramePayload + kFramePayload / 2 ? rest : kFramePayload; }

}  // namespace

size_t FrameQueue::OutgoingMessage::batched_bytes() const {
  constexpr size_t kNumbers = 16;
  if (source_ != nullptr) return kMaxBatchedMessage + 1;
  return size_ + header_.method().size() + header_.error().size() + kNumbers;
}

size_t FrameQueue::OutgoingMessage::waiting_bytes() const {
  const size_t rest = size_ - sent_;
  return (source_ != nullptr ? std::min(rest, kFramePayload) : rest) + kMessageOverhead;
}

Bytes FrameQueue::OutgoingMessage::Frame() {
  if (!others_.empty()) {
    size_t bytes = batched_bytes();
    for (const OutgoingMessage& turn : others_) bytes += turn.batched_bytes();
    BatchWriter batch(bytes);
    batch.Add(header_, bytes_);
    for (const OutgoingMessage& turn : others_) batch.Add(turn.header_, turn.bytes_);
    sent_ = size_;
    return batch.Take();
  }
  const size_t rest = size_ - sent_;
  Bytes chunk;
  if (source_ != nullptr) {
    chunk = source_->Next(ChunkOf(rest));
    TANDEM_CHECK(!chunk.empty() && chunk.size() <= ChunkOf(rest));
  } else {
    const size_t size = ChunkOf(rest);
    chunk = size == size_ ? std::move(bytes_) : bytes_.Sub(sent_, size);
  }
  if (sent_ == 0 && chunk.size() < size_) header_.set_message_bytes(size_);
  sent_ += chunk.size();
  Bytes wire = EncodeBulk(header_, std::move(chunk));
  const uint64_t call = header_.call();
  header_ = v1::StreamFrame();
  header_.set_call(call);
  return wire;
}

void FrameQueue::Add(v1::StreamFrame header, Bytes message) {
  OutgoingMessage turn;
  turn.header_ = std::move(header);
  turn.size_ = message.size();
  turn.bytes_ = std::move(message);
  Add(std::move(turn));
}

void FrameQueue::Add(v1::StreamFrame header, std::unique_ptr<ResponseSource> message) {
  OutgoingMessage turn;
  turn.header_ = std::move(header);
  turn.size_ = message->size();
  turn.source_ = std::move(message);
  Add(std::move(turn));
}

void FrameQueue::Add(OutgoingMessage message) {
  bytes_ += message.waiting_bytes();
  messages_.push_back(std::move(message));
}

FrameQueue::OutgoingMessage FrameQueue::Pop() {
  OutgoingMessage turn = std::move(messages_.front());
  messages_.pop_front();
  bytes_ -= turn.waiting_bytes();
  return turn;
}

FrameQueue::OutgoingMessage FrameQueue::Take(bool batches) {
  OutgoingMessage turn = Pop();
  out_ = turn.header_.call();
  if (!std::exchange(said_, true)) turn.header_.set_batches(true);
  size_t bytes = turn.batched_bytes();
  if (!batches || bytes > kMaxBatchedMessage) return turn;
  while (!messages_.empty() && bytes < kUsualBatchBytes && turn.others_.size() + 1 < kMaxBatchFrames) {
    const size_t more = messages_.front().batched_bytes();
    if (more > kMaxBatchedMessage) break;
    bytes += more;
    turn.others_.push_back(Pop());
  }
  return turn;
}

void FrameQueue::PutBack(OutgoingMessage* turn) {
  if (std::exchange(out_, 0) != 0 && turn->sent_ < turn->size_) Add(std::move(*turn));
}

Bytes FrameQueue::Next(bool batches) {
  OutgoingMessage turn = Take(batches);
  Bytes wire = turn.Frame();
  PutBack(&turn);
  return wire;
}

FrameQueue::Dropped FrameQueue::Drop(uint64_t call, std::deque<OutgoingMessage>* taken) {
  Dropped dropped = Dropped::kNothing;
  if (out_ == call) {
    out_ = 0;
    dropped = Dropped::kPartlySent;
  }
  for (auto it = messages_.begin(); it != messages_.end();) {
    if (it->header_.call() != call) {
      ++it;
      continue;
    }
    dropped = it->sent_ > 0 ? Dropped::kPartlySent : Dropped::kUnsent;
    bytes_ -= it->waiting_bytes();
    if (taken != nullptr) taken->push_back(std::move(*it));
    it = messages_.erase(it);
  }
  return dropped;
}

std::deque<FrameQueue::OutgoingMessage> FrameQueue::Clear() {
  bytes_ = 0;
  out_ = 0;
  return std::exchange(messages_, {});
}

}  // namespace tandem::rpc
