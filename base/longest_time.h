// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_LONGEST_TIME_H_
#define TANDEM_BASE_LONGEST_TIME_H_

// Keeps the longest of many times, such as those for which a lock was held.

#include <atomic>
#include <chrono>
#include <cstdint>

namespace tandem {

// Thread-safe, without locks.
class LongestTime {
 public:
  // Measures its own life on the monotonic clock. To time a lock, make one right after taking it.
  class Timer {
   public:
    explicit Timer(LongestTime* longest) : longest_(longest) {}
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;
    ~Timer() {
      const auto lasted = std::chrono::steady_clock::now() - start_;
      longest_->Note(std::chrono::duration_cast<std::chrono::nanoseconds>(lasted).count());
    }

   private:
    LongestTime* const longest_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  void Note(int64_t nanoseconds) {
    int64_t longest = nanoseconds_.load(std::memory_order_relaxed);
    while (nanoseconds > longest &&
           !nanoseconds_.compare_exchange_weak(longest, nanoseconds, std::memory_order_relaxed)) {
    }
  }
  double seconds() const { return static_cast<double>(nanoseconds_.load(std::memory_order_relaxed)) * 1e-9; }

 private:
  std::atomic<int64_t> nanoseconds_{0};
};

}  // namespace tandem

#endif  // TANDEM_BASE_LONGEST_TIME_H_
