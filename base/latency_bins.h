// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_LATENCY_BINS_H_
#define TANDEM_BASE_LATENCY_BINS_H_

// The bins of v1.LatencyHistogram. Each octave has eight bins of equal width, as in Gil Tene's HdrHistogram,
// so that the middle of a bin differs from any duration counted in it by at most a sixteenth.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tandem {

inline constexpr size_t kLatencyBinsPerOctave = 8;
// The last bin counts durations of about half an hour and more.
inline constexpr size_t kLatencyBins = 1 + kLatencyBinsPerOctave * 31;

// Returns the bin that counts a duration of `ns` nanoseconds.
constexpr size_t LatencyBin(uint64_t ns) {
  const uint64_t eighths = ns / 125;  // of a microsecond
  if (eighths < 8) return 0;
  const auto octave = static_cast<size_t>(std::bit_width(eighths) - 4);
  return std::min<size_t>(kLatencyBins - 1, 8 * octave + static_cast<size_t>(eighths >> octave) - 7);
}

// Returns the smallest duration, in microseconds, that is counted in a bin. For kLatencyBins that is the end
// of the last bin.
inline double LatencyBinStartUs(size_t bin) {
  if (bin == 0) return 0;
  const size_t octave = (bin - 1) / 8;
  return std::ldexp(static_cast<double>(8 + (bin - 1) % 8) / 8, static_cast<int>(octave));
}

}  // namespace tandem

#endif  // TANDEM_BASE_LATENCY_BINS_H_
