// SPDX-License-Identifier: Apache-2.0
#include "worker/synthetic/synthetic.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/random.h"

namespace tandem::worker {
namespace {

class SyntheticReader : public BatchReader {
 public:
  explicit SyntheticReader(const SyntheticOptions& options) : remaining_(options.batches) {
    std::vector<double> cumulative(options.vocabulary);
    double total = 0;
    for (uint64_t k = 0; k < options.vocabulary; ++k) {
      total += std::pow(static_cast<double>(k + 1), -options.zipf_exponent);
      cumulative[k] = total;
    }
    for (int i = 0; i < options.distinct_batches; ++i) {
      CounterRandom random(options.seed, static_cast<uint64_t>(i));
      Batch batch;
      batch.size = options.batch_size;
      batch.num_dense = static_cast<size_t>(options.num_dense);
      batch.labels.resize(batch.size);
      for (float& label : batch.labels) label = random.Uniform() < 0.25f ? 1.0f : 0.0f;
      batch.dense.resize(batch.size * batch.num_dense);
      for (float& value : batch.dense) value = random.Uniform();
      batch.sparse.resize(options.num_sparse);
      for (int f = 0; f < options.num_sparse; ++f) {
        batch.sparse[f].ids.resize(batch.size);
        for (uint64_t& id : batch.sparse[f].ids) {
          const auto at =
              std::lower_bound(cumulative.begin(), cumulative.end(), random.UniformDouble() * total);
          // Hashed, as by a reader of real data, so that hot ids lie anywhere in the table.
          id = Mix64(static_cast<uint64_t>(f) + 1, static_cast<uint64_t>(at - cumulative.begin()));
        }
      }
      batches_.push_back(std::move(batch));
    }
  }

  absl::StatusOr<bool> Next(Batch* batch) override {
    if (remaining_ == 0) return false;
    --remaining_;
    *batch = batches_[next_++ % batches_.size()];
    return true;
  }
  uint64_t malformed_lines() const override { return 0; }

 private:
  std::vector<Batch> batches_;
  uint64_t remaining_;
  size_t next_ = 0;
};

}  // namespace

std::unique_ptr<BatchReader> MakeSyntheticReader(const SyntheticOptions& options) {
  return std::make_unique<SyntheticReader>(options);
}

}  // namespace tandem::worker
