#ifndef TANDEM_BASE_LATENCY_BINS_H_
#define TANDEM_BASE_LATENCY_BINS_H_

// The bins of v1.LatencyHistogram: eight to an octave, equally wide within it (as in Gil Tene's
// HdrHistogram), so that the middle of a bin is within a sixteenth of whatever was counted in it.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace tandem {

inline constexpr size_t kLatencyBinsPerOctave = 8;
inline constexpr size_t kLatencyBins = 1 + kLatencyBinsPerOctave * 31;  // the last one: half an hour and more

constexpr size_t LatencyBin(uint64_t ns) {
  const uint64_t eighths = ns / 125;  // of a microsecond
  if (eighths < 8) return 0;
  const auto octave = static_cast<size_t>(std::bit_width(eighths) - 4);
  return std::min<size_t>(kLatencyBins - 1, 8 * octave + static_cast<size_t>(eighths >> octave) - 7);
}

// The least duration that is counted in a bin; that of kLatencyBins ends the last one.
inline double LatencyBinStartUs(size_t bin) {
  if (bin == 0) return 0;
  const size_t octave = (bin - 1) / 8;
  return std::ldexp(static_cast<double>(8 + (bin - 1) % 8) / 8, static_cast<int>(octave));
}

}  // namespace tandem

#endif  // TANDEM_BASE_LATENCY_BINS_H_
