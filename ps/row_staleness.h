// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_ROW_STALENESS_H_
#define TANDEM_PS_ROW_STALENESS_H_

// Counts of row staleness. The staleness of a gradient's row is the number of the row's own updates between
// the pull that the gradient is based on and the update that applies it. (The staleness of a push counts the
// updates of the whole table.) Servers measure it (ps/server/table/row_staleness_meter.h), clients add up
// what servers report.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/numeric/bits.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Largest number of segments of one part of a push (v1::PushSlice.segment_ends).
inline constexpr size_t kMaxPushSegments = 65536;

// The row staleness of a set of gradients. A plain value; not thread-safe.
struct RowStalenessCounts {
  // Bins hold 0, 1, 2 and 3, then half a power of two each: 4-5, 6-7, 8-11, 12-15, ... The last bin counts
  // everything above, too.
  static constexpr size_t kBins = 32;

  uint64_t rows = 0;  // number of gradients
  uint64_t sum = 0;   // of their row staleness
  uint64_t max = 0;
  std::array<uint64_t, kBins> histogram{};

  static size_t BinOf(uint64_t staleness) {
    if (staleness < 4) return static_cast<size_t>(staleness);
    const int octave = absl::bit_width(staleness) - 1;  // at least 2
    const size_t bin = 2 * static_cast<size_t>(octave) + (staleness >> (octave - 1) & 1);
    return std::min(bin, kBins - 1);
  }
  // Returns the least staleness of a bin.
  static uint64_t BinStart(size_t bin) {
    if (bin < 4) return bin;
    return (uint64_t{2} + bin % 2) << (bin / 2 - 1);
  }

  void Add(uint64_t staleness) {
    ++rows;
    sum += staleness;
    max = std::max(max, staleness);
    ++histogram[BinOf(staleness)];
  }
  void Add(const RowStalenessCounts& other) {
    rows += other.rows;
    sum += other.sum;
    max = std::max(max, other.max);
    for (size_t bin = 0; bin < kBins; ++bin) histogram[bin] += other.histogram[bin];
  }
  double Mean() const { return rows == 0 ? 0.0 : static_cast<double>(sum) / static_cast<double>(rows); }
  // Returns a staleness that a fraction `quantile` of the gradients does not exceed; 0 if there are none. It
  // is the largest one of its bin, but at most `max`; exact below 4.
  uint64_t Quantile(double quantile) const {
    const double wanted = quantile * static_cast<double>(rows);
    double below = 0;
    for (size_t bin = 0; bin < kBins; ++bin) {
      below += static_cast<double>(histogram[bin]);
      if (histogram[bin] > 0 && below >= wanted) {
        return bin + 1 == kBins ? max : std::min(max, BinStart(bin + 1) - 1);
      }
    }
    return max;
  }

  // Convert from and to the message. A histogram with too many bins, from a peer that is at fault, is cut.
  static RowStalenessCounts FromProto(const v1::RowStaleness& from) {
    RowStalenessCounts counts{.rows = from.rows(), .sum = from.sum(), .max = from.max()};
    for (int i = 0; i < std::min<int>(from.histogram_size(), kBins); ++i) {
      counts.histogram[i] = from.histogram(i);
    }
    return counts;
  }
  void ToProto(v1::RowStaleness* to) const {
    to->set_rows(rows);
    to->set_sum(sum);
    to->set_max(max);
    size_t bins = kBins;
    while (bins > 0 && histogram[bins - 1] == 0) --bins;
    to->mutable_histogram()->Clear();
    for (size_t bin = 0; bin < bins; ++bin) to->add_histogram(histogram[bin]);
  }
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_ROW_STALENESS_H_
