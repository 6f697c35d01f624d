// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_DATA_BATCH_H_
#define TANDEM_WORKER_DATA_BATCH_H_

// A batch of examples in column layout: readers produce it and trainers consume it.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tandem::worker {

// One sparse feature of a batch. The ids of example b are ids[offsets[b], offsets[b + 1]). A single-valued
// feature has exactly one id per example and leaves `offsets` empty. Ids are global: the feature's name is
// hashed into them, so that all features can share one table.
struct SparseColumn {
  std::vector<uint64_t> ids;
  // [size + 1], or empty: one id per example
  std::vector<uint32_t> offsets;
  std::vector<float> weights;  // one per id (libsvm and libfm values), or empty: all 1
};

// Examples in column layout. Clear() empties the batch and keeps its memory.
struct Batch {
  size_t size = 0;
  std::vector<float> labels;  // [size], 0 or 1
  size_t num_dense = 0;
  std::vector<float> dense;          // [size x num_dense], row-major
  std::vector<SparseColumn> sparse;  // one per sparse feature
  size_t num_kept = 0;
  std::vector<std::string> kept;  // [size x num_kept], row-major: the fields of Schema::kept

  void Clear() {
    size = 0;
    labels.clear();
    dense.clear();
    kept.clear();
    for (SparseColumn& column : sparse) {
      column.ids.clear();
      column.offsets.clear();
      column.weights.clear();
    }
  }
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DATA_BATCH_H_
