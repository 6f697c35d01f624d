// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_BATCH_NORM_H_
#define TANDEM_WORKER_NN_BATCH_NORM_H_

// Batch normalization: each column becomes scale * (x - mean) / sqrt(variance + epsilon) (Ioffe and Szegedy,
// ICML 2015). The shift is the bias of the layer, which the caller adds afterwards.

#include <vector>

#include "absl/strings/string_view.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"
#include "worker/nn/sum_over_workers.h"

namespace tandem::worker {

struct BatchNormOptions {
  // Weight of a new batch in the running averages, as in PyTorch; the variance is the unbiased one. A batch
  // that is smaller than others before it, such as the last one of an epoch, weighs less in proportion.
  float momentum = 0.1f;
  float epsilon = 1e-5f;  // added to the variance before its root
  // Null, or pointer to a null function: mean and variance are those of this worker's batch. Otherwise they
  // are those of all workers' batches together. Must outlive the layer.
  const SumOverWorkers* sum = nullptr;
};

// Keeps what the backward pass needs of the last training Forward. `parameters` must outlive it. Not
// thread-safe.
class BatchNorm {
 public:
  // Adds "`name`.scale" (ones, without decay) to `parameters`, and to its running averages "`name`.mean"
  // (zeros), "`name`.variance" (ones) and "`name`.largest_batch" (the size of the largest batch so far).
  BatchNorm(absl::string_view name, int width, const BatchNormOptions& options, Parameters* parameters);

  // Normalizes y [batch x width] in place: with the statistics of this batch, which are added to the running
  // averages, if `training`, and with the running averages otherwise. batch >= 1.
  void Forward(size_t batch, bool training, Matrix y);
  // Replaces the gradient of the output, dy [batch x width], by that of the input, and writes the gradient of
  // the scale, summed over this worker's batch. `batch` is that of the last training Forward.
  void Backward(size_t batch, Matrix dy);

  // End of the scale in the flat parameter array.
  size_t end() const { return scale_ + width_; }

 private:
  // Adds up `values` over all workers if the statistics are those of the global batch.
  void Sum(std::vector<double>* values) const;

  size_t width_;
  BatchNormOptions options_;
  Parameters* parameters_;
  size_t scale_;
  size_t mean_;  // offsets among the running averages
  size_t variance_;
  size_t largest_batch_;
  AlignedFloats normalized_;        // (x - mean) / sqrt(variance + epsilon)
  AlignedFloats mean_of_batch_;     // of the batch, or the running one
  AlignedFloats inverse_;           // 1 / sqrt(variance + epsilon)
  AlignedFloats d_mean_, d_slope_;  // means of dy and of dy * normalized_
  std::vector<double> sums_;        // [sums | sums of products | examples]
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_BATCH_NORM_H_
