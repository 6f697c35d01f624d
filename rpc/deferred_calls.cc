// SPDX-License-Identifier: Apache-2.0
#include "rpc/deferred_calls.h"

#include <utility>
#include <vector>

namespace tandem::rpc {

DeferredCalls::DeferredCalls(Clock* clock) : clock_(clock), timer_([this] { Run(); }) {}

DeferredCalls::~DeferredCalls() { Stop(); }

uint64_t DeferredCalls::NewTicket() {
  absl::MutexLock lock(&mutex_);
  return next_ticket_++;
}

void DeferredCalls::Defer(uint64_t ticket, absl::Time deadline, Expire expire) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) {
      if (by_deadline_.empty() || deadline < by_deadline_.begin()->first) earlier_ = true;
      by_deadline_.emplace(deadline, ticket);
      entries_.emplace(ticket, Entry{deadline, std::move(expire)});
      return;
    }
  }
  expire(Reason::kStopped);
}

bool DeferredCalls::Resume(uint64_t ticket) {
  Entry entry;  // destroyed outside the lock: it may hold the last reference to a call
  absl::MutexLock lock(&mutex_);
  auto found = entries_.find(ticket);
  if (found == entries_.end()) return false;
  entry = std::move(found->second);
  entries_.erase(found);
  auto [first, last] = by_deadline_.equal_range(entry.deadline);
  for (auto it = first; it != last; ++it) {
    if (it->second == ticket) {
      by_deadline_.erase(it);
      break;
    }
  }
  return true;
}

bool DeferredCalls::Contains(uint64_t ticket) const {
  absl::MutexLock lock(&mutex_);
  return entries_.contains(ticket);
}

void DeferredCalls::ExpireAll() {
  std::vector<Expire> rest;
  {
    absl::MutexLock lock(&mutex_);
    for (auto& [ticket, entry] : entries_) rest.push_back(std::move(entry.expire));
    entries_.clear();
    by_deadline_.clear();
  }
  for (Expire& expire : rest) expire(Reason::kStopped);
}

void DeferredCalls::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  ExpireAll();
  if (timer_.joinable()) timer_.join();
}

size_t DeferredCalls::size() const {
  absl::MutexLock lock(&mutex_);
  return entries_.size();
}

void DeferredCalls::Run() {
  while (true) {
    std::vector<Expire> expired;
    {
      absl::MutexLock lock(&mutex_);
      earlier_ = false;
      const absl::Time wake = by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
      clock_->AwaitUntil(&mutex_, absl::Condition(this, &DeferredCalls::Woken), wake);
      if (stopping_) return;
      const absl::Time now = clock_->Now();
      while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
        auto found = entries_.find(by_deadline_.begin()->second);
        expired.push_back(std::move(found->second.expire));
        entries_.erase(found);
        by_deadline_.erase(by_deadline_.begin());
      }
    }
    for (Expire& expire : expired) expire(Reason::kDeadline);
  }
}

}  // namespace tandem::rpc
