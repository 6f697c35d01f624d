// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BENCH_HARNESS_ID_BATCHES_H_
#define TANDEM_BENCH_HARNESS_ID_BATCHES_H_

// The ids of the measured calls. They are generated before the clock starts and used in turn; they exceed the
// caches.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/random.h"
#include "bench/harness/ps_case.h"

namespace tandem::bench {

// Draws ranks 0, 1, ... with probabilities proportional to (rank + 1)^-exponent, in constant time
// (rejection-inversion: Hörmann and Derflinger, ACM TOMACS 1996). `exponent` is positive and not 1.
class ZipfRanks {
 public:
  ZipfRanks(uint64_t count, double exponent);
  uint64_t Draw(CounterRandom* random) const;

 private:
  double Integral(double x) const;  // integral of x^-exponent
  double InverseIntegral(double y) const;

  const double count_, exponent_;
  double low_, high_;       // bounds of the integral over the ranks
  double accept_distance_;  // a draw at most this far below a rank is accepted without a test
};

// Returns batches of `ids` distinct ids below `rows`, in the order of the draws: a worker merges repeated ids
// before it calls. The result is the same in every process. The batches have about 2^19 ids together, but
// there are at least 16 and at most 2^15 batches.
std::vector<std::vector<uint64_t>> MakeIdBatches(size_t ids, uint64_t rows, PsDistribution distribution);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_HARNESS_ID_BATCHES_H_
