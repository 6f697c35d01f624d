// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_SYNTHETIC_SYNTHETIC_H_
#define TANDEM_WORKER_SYNTHETIC_SYNTHETIC_H_

// Generates click batches in memory, to measure a trainer without reading a data file.

#include <cstdint>
#include <memory>

#include "worker/data/dataset.h"

namespace tandem::worker {

struct SyntheticOptions {
  int num_sparse = 26;
  int num_dense = 13;
  uint64_t vocabulary = 100000;  // ids per feature
  double zipf_exponent = 1.05;   // frequency of the k-th most frequent id ~ k^-exponent
  size_t batch_size = 1024;
  int distinct_batches = 16;  // generated once, then cycled
  uint64_t batches = 1000;    // number of batches in a pass
  uint64_t seed = 1;
};

// Returns a reader of synthetic batches. Dense values are uniform in [0, 1), labels are 1 with probability
// 1/4: there is nothing to learn.
std::unique_ptr<BatchReader> MakeSyntheticReader(const SyntheticOptions& options);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_SYNTHETIC_SYNTHETIC_H_
