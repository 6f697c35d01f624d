// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLI_PROFILING_CLOCK_OFFSET_H_
#define TANDEM_CLI_PROFILING_CLOCK_OFFSET_H_

// Estimates the offset of another process's clock from this process's. The classes are plain values.

#include <cstdint>

namespace tandem::cli {

// NTP's estimate (Mills, RFC 5905). A request is sent at `sent` by our clock, received at `received` and
// answered at `answered` by their clock, and its response arrives at `arrived` by our clock. How the round
// trip's time divides between the two directions is unknown; assuming equal halves is wrong by at most half
// the round trip. Of several round trips the shortest one gives the smallest error.
class ClockOffset {
 public:
  // Adds one round trip, in nanoseconds. An impossible one (a negative time) is ignored.
  void Add(int64_t sent, int64_t received, int64_t answered, int64_t arrived) {
    const int64_t round_trip = (arrived - sent) - (answered - received);
    if (round_trip < 0 || answered < received) return;
    const int64_t error = round_trip / 2 + 1;
    if (known_ && error >= error_) return;
    known_ = true;
    error_ = error;
    offset_ = (received - sent) / 2 + (answered - arrived) / 2;
    at_ = arrived;
  }

  bool known() const { return known_; }
  int64_t offset() const { return offset_; }  // theirs minus ours
  int64_t error() const { return error_; }    // the true offset is at most this far from offset()
  int64_t at() const { return at_; }          // the time of the estimate by our clock

 private:
  bool known_ = false;
  int64_t offset_ = 0, error_ = 0, at_ = 0;
};

// Converts their time to ours with two estimates, one at each end of a period, because clocks of different
// machines drift.
class ClockLine {
 public:
  ClockLine() = default;
  // Either estimate may be unknown.
  ClockLine(const ClockOffset& first, const ClockOffset& second);

  // Returns our time at their time `their_ns`. It never decreases when `their_ns` grows.
  int64_t ToOurs(int64_t their_ns) const;
  // Returns the largest possible error, in nanoseconds, of ToOurs between the two estimates.
  int64_t error() const { return error_; }

 private:
  int64_t base_ = 0;  // the time by their clock at which the offset is offset_
  int64_t offset_ = 0;
  double drift_ = 0;  // of the offset, per nanosecond
  int64_t error_ = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_CLOCK_OFFSET_H_
