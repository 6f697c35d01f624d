// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_CROSS_H_
#define TANDEM_WORKER_MODELS_CROSS_H_

// The full-rank cross network of DCN-v2: x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, where * is element-wise (Wang
// et al., WWW 2021).

#include <vector>

#include "absl/strings/string_view.h"
#include "worker/models/model.h"
#include "worker/nn/linear.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// A stack of cross layers. Keeps the activations of the last Forward for the backward pass. `parameters` must
// outlive it. Not thread-safe.
class CrossNetwork {
 public:
  // Adds the layers "`name`.0", "`name`.1", ... of shape [width x width] to `parameters`. layers >= 1.
  CrossNetwork(absl::string_view name, int width, int layers, Parameters* parameters);

  // Computes y = x_L from x_0; both are [batch x width]. y and x0 must not overlap.
  void Forward(ConstMatrix x0, size_t batch, Matrix y);
  // Computes dx0 += the gradient of x_0, from dy; both are [batch x width]. Also writes the bias gradients.
  // `x0` and `batch` are those of the last Forward.
  void BackwardInputs(ConstMatrix x0, size_t batch, ConstMatrix dy, Matrix dx0);
  // Writes the weight gradients; call it after BackwardInputs. Calls `ready` for each layer, the last layer
  // first.
  void BackwardParameters(ConstMatrix x0, size_t batch, GradientsReady ready);

 private:
  size_t width_;
  std::vector<Linear> layers_;
  std::vector<AlignedFloats> products_;    // W_l x_l + b_l
  std::vector<AlignedFloats> inputs_;      // x_l for l > 0
  std::vector<AlignedFloats> d_products_;  // gradients of products_
  AlignedFloats d_input_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_CROSS_H_
