#ifndef TANDEM_WORKER_SYNTHETIC_SYNTHETIC_H_
#define TANDEM_WORKER_SYNTHETIC_SYNTHETIC_H_

// Click batches made in memory, for measuring a trainer without a data file in the way.

#include <cstdint>
#include <memory>

#include "worker/data/dataset.h"

namespace tandem::worker {

struct SyntheticOptions {
  int num_sparse = 26;
  int num_dense = 13;
  uint64_t vocabulary = 100000;  // ids per feature
  double zipf_exponent = 1.05;   // frequency of the k-th commonest id ~ k^-exponent
  size_t batch_size = 1024;
  int distinct_batches = 16;  // made once, then cycled
  uint64_t batches = 1000;    // what one pass gives
  uint64_t seed = 1;
};

// Dense values are uniform in [0, 1), labels are 1 with probability 1/4: nothing to learn, only to compute.
std::unique_ptr<BatchReader> MakeSyntheticReader(const SyntheticOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_SYNTHETIC_SYNTHETIC_H_
