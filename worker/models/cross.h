#ifndef TANDEM_WORKER_MODELS_CROSS_H_
#define TANDEM_WORKER_MODELS_CROSS_H_

// The full-rank cross network of DCN-v2: x_{l+1} = x_0 * (W_l x_l + b_l) + x_l, * element by element (Wang et
// al., WWW 2021).

#include <vector>

#include "absl/strings/string_view.h"
#include "worker/models/model.h"
#include "worker/nn/linear.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// Keeps the activations of the last Forward. `parameters` must outlive it. Not thread-safe.
class CrossNetwork {
 public:
  // At least one layer, each of shape [width x width], named "`name`.0" ...
  CrossNetwork(absl::string_view name, int width, int layers, Parameters* parameters);

  // y [batch x width] = x_L, from x_0 [batch x width]. y and x0 may not overlap.
  void Forward(ConstMatrix x0, size_t batch, Matrix y);
  // From dy [batch x width]; dx0 += the gradient of x_0. `x0` and `batch` are those of the last Forward.
  void BackwardInputs(ConstMatrix x0, size_t batch, ConstMatrix dy, Matrix dx0);
  // Then the parameters' gradients. `ready` is called for each layer, the last first.
  void BackwardParameters(ConstMatrix x0, size_t batch, GradientsReady ready);

 private:
  size_t width_;
  std::vector<Linear> layers_;
  std::vector<AlignedFloats> products_;    // W_l x_l + b_l
  std::vector<AlignedFloats> inputs_;      // x_l for l > 0
  std::vector<AlignedFloats> d_products_;  // the gradients of products_
  AlignedFloats d_input_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_MODELS_CROSS_H_
