// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/link.h"

#include <algorithm>
#include <utility>

namespace tandem::ps {

void LinkStream::Add(Chunk chunk) {
  if (chunk.live) live_bytes_ += chunk.records.size();
  waiting_.push_back(std::move(chunk));
}

void LinkStream::AddState(Slice state) {
  has_state_ = true;
  waiting_.push_front({.records = std::move(state)});
}

bool LinkStream::CanSend() const {
  return has_state_ && !waiting_.empty() && in_flight_.size() < max_in_flight_;
}

std::vector<const LinkStream::Message*> LinkStream::Take(absl::Time now, std::vector<Sent>* sent) {
  std::vector<const Message*> messages;
  for (Message& message : in_flight_) {
    if (message.under_way || message.retry_at > now) continue;
    message.under_way = true;
    messages.push_back(&message);
  }
  while (CanSend()) {
    Message& message = in_flight_.emplace_back();
    message.number = ++last_;
    message.under_way = true;
    do {
      Chunk& chunk = waiting_.front();
      if (chunk.live) message.live_bytes += chunk.records.size();
      if (chunk.end) end_number_ = message.number;
      if (chunk.sent) sent->push_back(std::move(chunk.sent));
      message.payload.Append(std::move(chunk.records));
      waiting_.pop_front();
    } while (!waiting_.empty() && message.payload.size() + waiting_.front().records.size() <= message_bytes_);
    messages.push_back(&message);  // a deque moves nothing when it grows at its end
  }
  return messages;
}

absl::Time LinkStream::RetryTime() const {
  absl::Time earliest = absl::InfiniteFuture();
  for (const Message& message : in_flight_) {
    if (!message.under_way) earliest = std::min(earliest, message.retry_at);
  }
  return earliest;
}

void LinkStream::Failed(uint64_t number, absl::Time retry_at) {
  if (number <= stored_) return;
  Message& message = in_flight_[number - stored_ - 1];
  message.under_way = false;
  message.retry_at = retry_at;
}

bool LinkStream::SetStored(uint64_t number) {
  if (number > last_) return false;
  for (; stored_ < number; ++stored_) {
    live_bytes_ -= in_flight_.front().live_bytes;
    in_flight_.pop_front();
  }
  return true;
}

void LinkStream::Abandon(std::vector<Sent>* sent) {
  for (Chunk& chunk : waiting_) {
    if (chunk.sent) sent->push_back(std::move(chunk.sent));
  }
  waiting_.clear();
}

}  // namespace tandem::ps
