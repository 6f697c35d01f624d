#ifndef TANDEM_BENCH_HARNESS_MEASURE_H_
#define TANDEM_BENCH_HARNESS_MEASURE_H_

// How a collective is timed: the same for ours and for the peers under bench/peers/.
//
// A sample is the mean time of a batch of operations, one behind the other, on the slowest rank; a batch
// lasts `batch` (one operation, where that lasts longer), so that reading the clock costs nothing that shows.
// A repeat begins with a barrier and lasts `time_per_size`; how many operations that are is found out before,
// which is also the warm-up, and agreed by all ranks; the very first size is measured once for nothing
// before. Operations go round several sets of buffers (buffer_sets.h).

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

// One rank of what is measured. Its calls are made by one thread, in the same order on all ranks.
class BenchTarget {
 public:
  virtual ~BenchTarget() = default;
  virtual int rank() const = 0;
  virtual std::string backend() const = 0;  // as it is printed
  // What the following Runs do. `buffers` outlives them. Unimplemented where it has no such operation.
  virtual absl::Status Prepare(const BenchCase& bench_case, const BufferSets& buffers) = 0;
  // Runs operations [first, first + count), operation i on the i-th set of buffers.
  virtual absl::Status Run(uint64_t first, uint64_t count) = 0;
  // Beside the measurement.
  virtual absl::Status Barrier() = 0;
  // values[i] = its maximum over ranks.
  virtual absl::Status MaxOverRanks(absl::Span<double> values) = 0;
};

struct Method {
  absl::Duration time_per_size = absl::Milliseconds(60);  // of one repeat
  absl::Duration batch = absl::Milliseconds(1);
  int repeats = 7;
};

// Microseconds per operation, over all samples.
struct Timing {
  double min_us = 0, median_us = 0, p99_us = 0;
};
Timing Summarize(std::vector<double> samples_us);

// Called by all ranks with the same arguments.
absl::StatusOr<Timing> Measure(BenchTarget* contestant, const BenchCase& bench_case, const Method& method);

// Measures all and has rank 0 print each as soon as it is done: as JSON objects, or as lines of a table.
absl::Status MeasureAndPrint(BenchTarget* contestant, absl::Span<const BenchCase> cases, const Method& method,
                             bool json);

// One JSON object without a newline: op, backend, ranks, bytes, dtype, in_place, min_us, median_us, p99_us,
// algbw_gbps, busbw_gbps (of the median, in 10^9 bytes per second).
std::string ToJson(const BenchCase& bench_case, const std::string& backend, const Timing& timing);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_MEASURE_H_
