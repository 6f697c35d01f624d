// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_TICKS_H_
#define TANDEM_BASE_TICKS_H_

// Reads the processor's time-stamp counter, which takes a few nanoseconds; reading a clock takes thirty.
// Ticks have no unit. TickClock converts them to times afterwards, from two moments at which both clocks were
// read.

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem {

// Returns the time of the monotonic clock, which all processes of a host share.
inline int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Converts ticks to times. Thread-safe, immutable.
class TickClock {
 public:
  TickClock() : counter_(CounterIsSteady()), ticks_(Now()), steady_(SteadyNanoseconds()) {}

  // Returns the current tick count.
  uint64_t Now() const { return counter_ ? ReadCounter() : static_cast<uint64_t>(SteadyNanoseconds()); }
  absl::string_view name() const { return counter_ ? "cpu counter" : "steady clock"; }

  // The second moment, taken at construction. Converts ticks that were read between the construction of the
  // TickClock and now.
  class Calibration {
   public:
    explicit Calibration(const TickClock& clock) {
      ticks_ = clock.Now();
      wall_ = absl::Now();
      steady_ = SteadyNanoseconds();
      const double elapsed = static_cast<double>(steady_ - clock.steady_);
      const double ticked = static_cast<double>(ticks_ - clock.ticks_);
      nanoseconds_per_tick_ = ticked > 0 && elapsed > 0 ? elapsed / ticked : 1.0;
    }
    // Returns the time from `from` to `to`. Zero instead of negative, because the counters of two cores may
    // differ slightly.
    absl::Duration Between(uint64_t from, uint64_t to) const {
      return to > from ? absl::Nanoseconds(static_cast<double>(to - from) * nanoseconds_per_tick_)
                       : absl::ZeroDuration();
    }
    absl::Duration Since(uint64_t ticks) const { return Between(ticks, ticks_); }
    absl::Time WallTime(uint64_t ticks) const { return wall_ - Since(ticks); }
    absl::Time now() const { return wall_; }
    // Returns the time of the steady clock.
    int64_t SteadyNanosecondsAt(uint64_t ticks) const {
      const double distance =
          ticks_ >= ticks ? static_cast<double>(ticks_ - ticks) : -static_cast<double>(ticks - ticks_);
      return steady_ - static_cast<int64_t>(distance * nanoseconds_per_tick_);
    }

   private:
    uint64_t ticks_;
    int64_t steady_;
    absl::Time wall_;
    double nanoseconds_per_tick_;
  };

 private:
#if defined(__x86_64__)
  // Equals __rdtsc(), whose header includes all intrinsics and takes half a second to compile.
  static uint64_t ReadCounter() { return __builtin_ia32_rdtsc(); }
  // Checks for an "invariant TSC": the same rate in all power states and on all cores.
  static bool CounterIsSteady() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(0x80000007, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
  }
#elif defined(__aarch64__)
  static uint64_t ReadCounter() {
    uint64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
  }
  static bool CounterIsSteady() { return true; }
#else
  static uint64_t ReadCounter() { return static_cast<uint64_t>(SteadyNanoseconds()); }
  static bool CounterIsSteady() { return false; }
#endif

  const bool counter_;
  const uint64_t ticks_;  // read together with steady_
  const int64_t steady_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_TICKS_H_
