// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_MLP_H_
#define TANDEM_WORKER_NN_MLP_H_

// A multi-layer perceptron: hidden layers with optional batch normalization, ReLU or tanh, and dropout, then
// an optional output layer.

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/nn/batch_norm.h"
#include "worker/nn/linear.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

enum class HiddenActivation { kRelu, kTanh };

struct MlpOptions {
  std::string name;  // for example "top": its layers are "top.0", "top.1", ...
  int in = 0;
  std::vector<int> hidden;
  int output = 0;            // width of an output layer; 0: the last hidden layer is the output
  bool relu_output = false;  // the output layer ends in a ReLU (it never has dropout)
  float dropout = 0.0f;      // after each hidden layer, in training
  uint64_t seed = 0;
  bool batch_norm = false;  // each hidden layer normalizes its products before it adds the bias
  BatchNormOptions norm;    // used if `batch_norm`
  HiddenActivation activation = HiddenActivation::kRelu;  // of hidden layers; kTanh excludes dropout
  WeightInitializer hidden_weights, output_weights;       // of the hidden layers; of the output layer
};

// Has at least one layer. Keeps the activations of the last Forward for the backward pass. `parameters` must
// outlive it. Not thread-safe.
class Mlp {
 public:
  Mlp(const MlpOptions& options, Parameters* parameters);

  size_t out() const { return layers_.back().out(); }

  // Computes y [batch x out()] from x. The columns of the matrices in `x` add up to options.in. `y` must stay
  // unchanged until BackwardInputs. `y` and `x` may be different columns of one matrix, but must not overlap.
  // `step` selects the dropout masks; they apply only if `training`. Batch normalization uses the statistics
  // of this batch if `training`, and its running averages otherwise.
  void Forward(absl::Span<const ConstMatrix> x, size_t batch, bool training, uint64_t step, Matrix y);

  // Computes dx = (gradient of x) + beta * dx from dy [batch x out()], unless `dx` is empty; a matrix of `dx`
  // whose `data` is null is skipped. Also writes the gradients of biases and scales. `dy` must stay unchanged
  // until BackwardParameters. `batch` is that of the last Forward.
  void BackwardInputs(size_t batch, ConstMatrix dy, float beta, absl::Span<const Matrix> dx);
  // Writes the weight gradients; call it after BackwardInputs. `x` and `batch` are those of the last Forward.
  // Calls `ready` for each layer, the last layer first.
  void BackwardParameters(absl::Span<const ConstMatrix> x, size_t batch, GradientsReady ready);

 private:
  bool HasRelu(size_t layer) const {
    return layer < num_hidden_ ? activation_ == HiddenActivation::kRelu : relu_output_;
  }
  bool HasTanh(size_t layer) const { return layer < num_hidden_ && activation_ == HiddenActivation::kTanh; }
  bool HasNorm(size_t layer) const { return layer < norms_.size(); }

  size_t num_hidden_;
  bool relu_output_;
  float dropout_;
  uint64_t seed_;
  HiddenActivation activation_;
  std::vector<Linear> layers_;
  std::vector<BatchNorm> norms_;           // of the hidden layers; empty without batch normalization
  std::vector<uint64_t> dropout_streams_;  // one per layer, from its name
  std::vector<AlignedFloats> outputs_;     // outputs of every layer but the last
  std::vector<AlignedFloats> gradients_;   // gradients of the inputs of each layer's activation
  Matrix y_;
  // Gradient of the last layer's output, before the ReLU if it has one.
  ConstMatrix d_last_;
  float hidden_scale_ = 1.0f;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_MLP_H_
