// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/clock_offset.h"

#include <algorithm>
#include <cmath>

namespace tandem::cli {
namespace {

// Oscillators differ by some 100 parts in a million at worst; a larger difference is an error of the
// estimates.
constexpr double kMaxDrift = 500e-6;

}  // namespace

ClockLine::ClockLine(const ClockOffset& first, const ClockOffset& second) {
  const ClockOffset& one = first.known() ? first : second;
  base_ = one.at() + one.offset();
  offset_ = one.offset();
  error_ = one.error();
  if (!first.known() || !second.known()) return;
  error_ = std::max(first.error(), second.error());
  const double elapsed = static_cast<double>(second.at() - first.at());
  if (elapsed <= 0) return;
  drift_ = std::clamp(static_cast<double>(second.offset() - first.offset()) / elapsed, -kMaxDrift, kMaxDrift);
}

int64_t ClockLine::ToOurs(int64_t their_ns) const {
  return their_ns - offset_ - std::llround(static_cast<double>(their_ns - base_) * drift_);
}

}  // namespace tandem::cli
