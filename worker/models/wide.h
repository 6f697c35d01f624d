// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_WIDE_H_
#define TANDEM_WORKER_MODELS_WIDE_H_

// The linear part of click models: the sum of the looked-up 1-dimensional rows, a weight per dense feature
// and, if no other part of the model has one, a bias.

#include "absl/types/span.h"
#include "worker/models/model.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// Adds "wide.weight" [1 x num_dense] and "wide.bias" [1], where they exist, to `parameters`. Both start at
// zero. Keeps no activations. Not thread-safe.
class Wide {
 public:
  Wide(const ModelOptions& options, bool has_bias, Parameters* parameters);

  // Adds the linear part to logits[b] of each example.
  void Forward(const ModelInput& input, absl::Span<float> logits) const;
  // Writes the gradient of the rows to `d_wide` [batch x num_sparse] unless it is null.
  void BackwardInputs(absl::Span<const float> d_logits, float* d_wide) const;
  // Writes the parameters' gradients and calls `ready` if there are any parameters.
  void BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits, GradientsReady ready);

 private:
  size_t num_dense_;
  size_t num_sparse_;
  bool has_bias_;
  Parameters* parameters_;
  size_t weight_;
  size_t bias_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_WIDE_H_
