// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_NN_LINEAR_H_
#define TANDEM_WORKER_NN_LINEAR_H_

// A fully connected layer: y = x W^T + b with W of shape [out x in], as in PyTorch. The input may consist of
// several matrices with adjacent columns (embeddings, then dense features), so that they need not be
// concatenated.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// The first values of a weight.
struct WeightInitializer {
  bool orthogonal = false;  // false: Xavier normal
  float gain = 1.0f;        // orthogonal: the length of each row (or column)
};

// Keeps no activations. `parameters` must outlive it. Not thread-safe.
class Linear {
 public:
  // Adds "`name`.weight" and "`name`.bias" (zeros) to `parameters`.
  Linear(absl::string_view name, int in, int out, Parameters* parameters,
         const WeightInitializer& initializer = {});

  size_t in() const { return in_; }
  size_t out() const { return out_; }
  const float* bias() const { return parameters_->value(bias_); }

  // Computes y [batch x out] = x W^T without the bias, which the caller adds together with the next
  // operation. The columns of the matrices in `x` add up to in().
  void Multiply(absl::Span<const ConstMatrix> x, size_t batch, Matrix y) const;
  // Overwrites the gradient of the weight, from dy [batch x out].
  void WeightGradient(absl::Span<const ConstMatrix> x, size_t batch, ConstMatrix dy);
  // The buffer [out] into which the caller writes the gradient of the bias, the column sums of dy.
  float* bias_gradient() { return parameters_->gradient(bias_); }
  // Computes dx = dy W + beta * dx, one matrix of `dx` after the other. A matrix whose `data` is null is
  // skipped.
  void InputGradient(ConstMatrix dy, size_t batch, float beta, absl::Span<const Matrix> dx) const;

  // This layer's range [begin, end) of the flat parameter array: weight, then bias.
  size_t begin() const { return weight_; }
  size_t end() const { return bias_ + out_; }

 private:
  size_t in_;
  size_t out_;
  Parameters* parameters_;
  size_t weight_;
  size_t bias_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_NN_LINEAR_H_
