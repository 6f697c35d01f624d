// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_MODELS_CROSS_H_
#define TANDEM_WORKER_MODELS_CROSS_H_

// The cross networks of DCN. A layer multiplies x_0 by a linear function of the layer's input:
//
//   matrix  x_{l+1} = x_0 * (W_l x_l + b_l) + x_l   (* is element-wise; DCN-v2, Wang et al., WWW 2021)
//   vector  x_{l+1} = x_0 (w_l . x_l) + b_l + x_l   (DCN, Wang et al., ADKDD 2017)

#include <memory>

#include "absl/strings/string_view.h"
#include "worker/models/model.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// A stack of cross layers. Keeps the activations of the last Forward for the backward pass. Not thread-safe.
class CrossNetwork {
 public:
  virtual ~CrossNetwork() = default;

  // Computes y = x_L from x_0; both are [batch x width]. y and x0 must not overlap.
  virtual void Forward(ConstMatrix x0, size_t batch, Matrix y) = 0;
  // Computes dx0 += the gradient of x_0, from dy; both are [batch x width]. Also writes the bias gradients.
  // `x0` and `batch` are those of the last Forward.
  virtual void BackwardInputs(ConstMatrix x0, size_t batch, ConstMatrix dy, Matrix dx0) = 0;
  // Writes the weight gradients; call it after BackwardInputs. Calls `ready` for each layer, the last layer
  // first.
  virtual void BackwardParameters(ConstMatrix x0, size_t batch, GradientsReady ready) = 0;
};

// Return a network whose layers "`name`.0", "`name`.1", ... are added to `parameters`, which must outlive it.
// The weights have the shape [width x width] or [1 x width]. layers >= 1.
std::unique_ptr<CrossNetwork> MakeMatrixCross(absl::string_view name, int width, int layers,
                                              Parameters* parameters);
std::unique_ptr<CrossNetwork> MakeVectorCross(absl::string_view name, int width, int layers,
                                              Parameters* parameters);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_CROSS_H_
