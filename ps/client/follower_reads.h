// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_FOLLOWER_READS_H_
#define TANDEM_PS_CLIENT_FOLLOWER_READS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace tandem::ps {

// Tells who has answered a client's read-only pulls (ClientOptions::max_lag). A pull asks each server once.
struct FollowerReadStatistics {
  uint64_t requests = 0;       // that a follower was allowed to answer
  uint64_t by_followers = 0;   // that a follower has answered; the primaries have answered the others
  absl::Duration last_lag;     // that the last of these answers has told
  absl::Duration largest_lag;  // that any of them has told: at most max_lag
};

// Counts them. Thread-safe.
class FollowerReadCounters {
 public:
  void AddAnswer(bool from_follower, uint64_t lag_us) {
    requests_.fetch_add(1, std::memory_order_relaxed);
    if (!from_follower) return;
    by_followers_.fetch_add(1, std::memory_order_relaxed);
    last_us_.store(lag_us, std::memory_order_relaxed);
    uint64_t largest = largest_us_.load(std::memory_order_relaxed);
    while (lag_us > largest &&
           !largest_us_.compare_exchange_weak(largest, lag_us, std::memory_order_relaxed)) {
    }
  }
  FollowerReadStatistics Get() const {
    const auto duration = [](const std::atomic<uint64_t>& us) {
      return absl::Microseconds(us.load(std::memory_order_relaxed));
    };
    return {.requests = requests_.load(std::memory_order_relaxed),
            .by_followers = by_followers_.load(std::memory_order_relaxed),
            .last_lag = duration(last_us_),
            .largest_lag = duration(largest_us_)};
  }

 private:
  std::atomic<uint64_t> requests_{0}, by_followers_{0}, last_us_{0}, largest_us_{0};
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_FOLLOWER_READS_H_
