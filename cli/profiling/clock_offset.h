#ifndef TANDEM_CLI_PROFILING_CLOCK_OFFSET_H_
#define TANDEM_CLI_PROFILING_CLOCK_OFFSET_H_

// How far another process's clock is from ours. Pure values.

#include <cstdint>

namespace tandem::cli {

// NTP's estimate (Mills, RFC 5905): a question sent at `sent` by our clock is received and answered by
// theirs, and the answer arrives by ours. The two ways take unknown parts of the round trip; assuming halves
// is wrong by at most half of it. The shortest of several round trips binds closest.
class ClockOffset {
 public:
  // Nanoseconds. Ignored when it cannot be (the answer came before the question).
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
  int64_t at() const { return at_; }          // when, by our clock

 private:
  bool known_ = false;
  int64_t offset_ = 0, error_ = 0, at_ = 0;
};

// Two of them, one at each end of a stretch of time: clocks of different machines drift.
class ClockLine {
 public:
  ClockLine() = default;
  // Either may be unknown.
  ClockLine(const ClockOffset& first, const ClockOffset& second);

  // Our time when theirs was `their_ns`. Never decreases with it.
  int64_t ToOurs(int64_t their_ns) const;
  // Largest possible error, in nanoseconds, of ToOurs between the two.
  int64_t error() const { return error_; }

 private:
  int64_t base_ = 0;  // by their clock
  int64_t offset_ = 0;
  double drift_ = 0;  // of the offset, per nanosecond
  int64_t error_ = 0;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_PROFILING_CLOCK_OFFSET_H_
