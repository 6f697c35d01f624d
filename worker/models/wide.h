#ifndef TANDEM_WORKER_MODELS_WIDE_H_
#define TANDEM_WORKER_MODELS_WIDE_H_

// The linear part that click models share: the sum of the looked-up 1-dimensional rows, a weight for each
// dense feature, and, where no other part has one, a bias.

#include "absl/types/span.h"
#include "worker/models/model.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// Adds "wide.weight" [1 x num_dense] and "wide.bias" [1], as far as there are any, to `parameters`, all zero
// at first: then the model starts at its other parts. Keeps no activations. Not thread-safe.
class Wide {
 public:
  Wide(const ModelOptions& options, bool has_bias, Parameters* parameters);

  // logits[b] += ... for each example.
  void Forward(const ModelInput& input, absl::Span<float> logits) const;
  // Writes d_wide unless null.
  void BackwardInputs(absl::Span<const float> d_logits, float* d_wide) const;
  // Writes the parameters' gradients, and calls `ready` if there are any.
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
