#ifndef TANDEM_WORKER_NN_MLP_H_
#define TANDEM_WORKER_NN_MLP_H_

// A multi-layer perceptron: hidden layers with ReLU and dropout, then, if wanted, an output layer.

#include <string>
#include <vector>

#include "absl/types/span.h"
#include "worker/nn/linear.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

struct MlpOptions {
  std::string name;  // "top": its layers are "top.0", "top.1", ...
  int in = 0;
  std::vector<int> hidden;
  int output = 0;            // width of an output layer; 0: the last hidden layer is the output
  bool relu_output = false;  // the output layer ends in a ReLU (it never has dropout)
  float dropout = 0.0f;      // after each hidden layer, in training
  uint64_t seed = 0;
};

// Keeps the activations of the last Forward. `parameters` must outlive it. Not thread-safe. At least one
// layer.
class Mlp {
 public:
  Mlp(const MlpOptions& options, Parameters* parameters);

  size_t out() const { return layers_.back().out(); }

  // y [batch x out()] from x, whose parts' columns add up to `in`. `y` must stay as it is until Backward. `y`
  // may lie beside `x` in one matrix, but not overlap it.
  void Forward(absl::Span<const ConstMatrix> x, size_t batch, bool training, uint64_t step, Matrix y);

  // From dy [batch x out()], which must stay as it is until BackwardParameters: dx = (gradient of x) + beta *
  // dx unless `dx` is empty; a part of it whose `data` is null is skipped. `batch` is that of the last
  // Forward.
  void BackwardInputs(size_t batch, ConstMatrix dy, float beta, absl::Span<const Matrix> dx);
  // Then the parameters' gradients; `x` and `batch` are those of the last Forward. `ready` is called for each
  // layer, the last first.
  void BackwardParameters(absl::Span<const ConstMatrix> x, size_t batch, GradientsReady ready);

 private:
  bool HasRelu(size_t layer) const { return layer < num_hidden_ || relu_output_; }

  size_t num_hidden_;
  bool relu_output_;
  float dropout_;
  uint64_t seed_;
  std::vector<Linear> layers_;
  std::vector<uint64_t> dropout_streams_;  // one per layer, from its name
  std::vector<AlignedFloats> outputs_;     // of every layer but the last
  std::vector<AlignedFloats> gradients_;   // of what goes into each layer's ReLU
  Matrix y_;
  ConstMatrix d_last_;  // of the last layer's output before its ReLU, if it has one
  float hidden_scale_ = 1.0f;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_MLP_H_
