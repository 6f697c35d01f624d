#ifndef TANDEM_BENCH_HARNESS_ID_BATCHES_H_
#define TANDEM_BENCH_HARNESS_ID_BATCHES_H_

// The ids of the calls that are measured: made before the clock starts, used in turn, and more of them than
// caches hold.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "bench/harness/ps_case.h"

namespace tandem::bench {

// Draws ranks 0, 1, ... in proportion to (rank + 1)^-exponent, in constant time (rejection-inversion: Hörmann
// and Derflinger, ACM TOMACS 1996). `exponent` is positive and not 1.
class ZipfRanks {
 public:
  ZipfRanks(uint64_t count, double exponent);
  uint64_t Draw(CounterRandom* random) const;

 private:
  double Integral(double x) const;  // of x^-exponent
  double InverseIntegral(double y) const;

  const double count_, exponent_;
  double low_, high_;  // of the integral, over the ranks
  double always_;      // so near above a rank that it is taken without a test
};

// `batches[b]` are `ids` distinct ids below `rows`, as they come: a worker merges an id's repetitions before
// it calls. The same on every process. There are as many batches as make 2^19 ids, but 16 to 2^15.
std::vector<std::vector<uint64_t>> MakeIdBatches(size_t ids, uint64_t rows, PsDistribution distribution);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_ID_BATCHES_H_
