#include "rpc/deferred_calls.h"

#include <utility>
#include <vector>

namespace tandem::ps {

ParkingLot::ParkingLot(Clock* clock) : clock_(clock), timer_([this] { Run(); }) {}

ParkingLot::~ParkingLot() { Stop(); }

uint64_t ParkingLot::NewTicket() {
  absl::MutexLock lock(&mutex_);
  return next_ticket_++;
}

void ParkingLot::Park(uint64_t ticket, absl::Time deadline, GiveUp give_up) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) {
      if (by_deadline_.empty() || deadline < by_deadline_.begin()->first) earlier_ = true;
      by_deadline_.emplace(deadline, ticket);
      entries_.emplace(ticket, Entry{deadline, std::move(give_up)});
      return;
    }
  }
  give_up(Reason::kStopped);
}

bool ParkingLot::Unpark(uint64_t ticket) {
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

bool ParkingLot::Contains(uint64_t ticket) const {
  absl::MutexLock lock(&mutex_);
  return entries_.contains(ticket);
}

void ParkingLot::Stop() {
  std::vector<GiveUp> rest;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [ticket, entry] : entries_) rest.push_back(std::move(entry.give_up));
    entries_.clear();
    by_deadline_.clear();
  }
  for (GiveUp& give_up : rest) give_up(Reason::kStopped);
  if (timer_.joinable()) timer_.join();
}

size_t ParkingLot::size() const {
  absl::MutexLock lock(&mutex_);
  return entries_.size();
}

void ParkingLot::Run() {
  while (true) {
    std::vector<GiveUp> expired;
    {
      absl::MutexLock lock(&mutex_);
      earlier_ = false;
      const absl::Time wake = by_deadline_.empty() ? absl::InfiniteFuture() : by_deadline_.begin()->first;
      clock_->AwaitUntil(&mutex_, absl::Condition(this, &ParkingLot::Woken), wake);
      if (stopping_) return;
      const absl::Time now = clock_->Now();
      while (!by_deadline_.empty() && by_deadline_.begin()->first <= now) {
        auto found = entries_.find(by_deadline_.begin()->second);
        expired.push_back(std::move(found->second.give_up));
        entries_.erase(found);
        by_deadline_.erase(by_deadline_.begin());
      }
    }
    for (GiveUp& give_up : expired) give_up(Reason::kDeadline);
  }
}

}  // namespace tandem::ps
