#ifndef TANDEM_BASE_TICKS_H_
#define TANDEM_BASE_TICKS_H_

// The processor's own counter: a time stamp for a few nanoseconds where absl::Now() costs thirty. Ticks mean
// nothing by themselves; TickClock turns them into times afterwards, by two moments at which both were read.

#include <chrono>
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace tandem {

// Of the monotonic clock, which all processes of a host share.
inline int64_t SteadyNanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Thread-safe; a value that does not change once it is made.
class TickClock {
 public:
  TickClock() : counter_(CounterIsSteady()), ticks_(Now()), steady_(SteadyNanoseconds()) {}

  uint64_t Now() const { return counter_ ? ReadCounter() : static_cast<uint64_t>(SteadyNanoseconds()); }
  absl::string_view name() const { return counter_ ? "cpu counter" : "steady clock"; }

  // The second moment: taken now. Good for the ticks read between construction and now.
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
    // From `from` to `to`; zero rather than negative, for counters of two cores differ by a little.
    absl::Duration Between(uint64_t from, uint64_t to) const {
      return to > from ? absl::Nanoseconds(static_cast<double>(to - from) * nanoseconds_per_tick_)
                       : absl::ZeroDuration();
    }
    absl::Duration Since(uint64_t ticks) const { return Between(ticks, ticks_); }
    absl::Time WallTime(uint64_t ticks) const { return wall_ - Since(ticks); }
    absl::Time now() const { return wall_; }
    // On the steady clock.
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
  // __rdtsc() by another name: its header, of all intrinsics, takes half a second to compile.
  static uint64_t ReadCounter() { return __builtin_ia32_rdtsc(); }
  // "Invariant TSC": the same rate in all power states, on all cores.
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
