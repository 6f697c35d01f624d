#ifndef TANDEM_WORKER_NN_LINEAR_H_
#define TANDEM_WORKER_NN_LINEAR_H_

// A fully connected layer: y = x W^T + b with W of shape [out x in], as PyTorch keeps it. Its input may lie
// in several matrices whose columns stand side by side (embeddings, then dense features), so that nothing is
// concatenated.

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "worker/nn/matrix.h"
#include "worker/nn/parameters.h"

namespace tandem::worker {

// Holds no activations; `parameters` must outlive it. Not thread-safe.
class Linear {
 public:
  // Adds "`name`.weight" (Xavier normal) and "`name`.bias" (zeros) to `parameters`.
  Linear(absl::string_view name, int in, int out, Parameters* parameters);

  size_t in() const { return in_; }
  size_t out() const { return out_; }
  const float* bias() const { return parameters_->value(bias_); }

  // y [batch x out] = x W^T, without the bias, which the caller adds together with what follows. The columns
  // of `x` add up to in().
  void Multiply(absl::Span<const ConstMatrix> x, size_t batch, Matrix y) const;
  // The gradient of the weight, from dy [batch x out].
  void WeightGradient(absl::Span<const ConstMatrix> x, size_t batch, ConstMatrix dy);
  // Where the gradient of the bias, the column sums of dy, is to be written: [out].
  float* bias_gradient() { return parameters_->gradient(bias_); }
  // dx = dy W + beta * dx, part by part; a part whose `data` is null is not wanted and skipped.
  void InputGradient(ConstMatrix dy, size_t batch, float beta, absl::Span<const Matrix> dx) const;

  // This layer's part of the flat array: [begin, end), weight then bias.
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
