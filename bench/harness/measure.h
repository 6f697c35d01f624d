// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_MEASURE_H_
#define TANDEM_BENCH_HARNESS_MEASURE_H_

// The method by which collectives are timed: the same for Tandem and for the programs under bench/peers/.
//
// A sample is the mean time of a batch of successive operations, on the slowest rank. A batch lasts `batch`
// (or one operation, if that lasts longer), so that the cost of reading the clock is negligible. A repeat
// begins with a barrier and lasts `time_per_size`. All ranks agree beforehand on its number of operations;
// finding that number is also the warm-up. The very first size is measured once more beforehand, and that
// result is discarded. Operations use several sets of buffers in turn (buffer_sets.h).

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "bench/harness/bench_case.h"
#include "bench/harness/buffer_sets.h"

namespace tandem::bench {

// One rank of the implementation that is measured. One thread makes its calls, in the same order on all
// ranks.
class BenchTarget {
 public:
  virtual ~BenchTarget() = default;
  virtual int rank() const = 0;
  virtual std::string backend() const = 0;  // name of the backend, for the output
  // Sets the operation and buffers of the following Runs. `buffers` outlives them. Unimplemented if the
  // implementation has no such operation.
  virtual absl::Status Prepare(const BenchCase& bench_case, const BufferSets& buffers) = 0;
  // Runs operations [first, first + count), operation i on the i-th set of buffers.
  virtual absl::Status Run(uint64_t first, uint64_t count) = 0;
  // Waits for all ranks. Not measured.
  virtual absl::Status Barrier() = 0;
  // Sets values[i] to its maximum over all ranks. Not measured.
  virtual absl::Status MaxOverRanks(absl::Span<double> values) = 0;
};

// Parameters of the method described above.
struct Method {
  absl::Duration time_per_size = absl::Milliseconds(60);  // duration of one repeat
  absl::Duration batch = absl::Milliseconds(1);
  int repeats = 7;
};

// Microseconds per operation, over all samples.
struct Timing {
  double min_us = 0, median_us = 0, p99_us = 0;
};
// Returns minimum, median and 99th percentile. `samples_us` must not be empty.
Timing Summarize(std::vector<double> samples_us);

// Measures one case. All ranks call it with the same arguments.
absl::StatusOr<Timing> Measure(BenchTarget* bench_target, const BenchCase& bench_case, const Method& method);

// Measures all cases. Rank 0 prints each result as soon as it is known: as JSON objects, or as lines of a
// table.
absl::Status MeasureAndPrint(BenchTarget* bench_target, absl::Span<const BenchCase> cases,
                             const Method& method, bool json);

// Returns one JSON object without a newline: op, backend, ranks, bytes, dtype, in_place, min_us, median_us,
// p99_us, algbw_gbps, busbw_gbps (both bandwidths from the median, in 10^9 bytes per second).
std::string ToJson(const BenchCase& bench_case, const std::string& backend, const Timing& timing);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_MEASURE_H_
