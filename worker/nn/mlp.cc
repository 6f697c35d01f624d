// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/mlp.h"

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/nn/activation.h"

namespace tandem::worker {

Mlp::Mlp(const MlpOptions& options, Parameters* parameters)
    : num_hidden_(options.hidden.size()),
      relu_output_(options.relu_output),
      dropout_(options.dropout),
      seed_(options.seed),
      activation_(options.activation) {
  TANDEM_CHECK(dropout_ == 0.0f || activation_ == HiddenActivation::kRelu);
  std::vector<int> widths = options.hidden;
  if (options.output > 0) widths.push_back(options.output);
  TANDEM_CHECK(!widths.empty());
  int in = options.in;
  for (size_t l = 0; l < widths.size(); ++l) {
    const std::string name = absl::StrCat(options.name, ".", l);
    layers_.emplace_back(name, in, widths[l], parameters,
                         l < num_hidden_ ? options.hidden_weights : options.output_weights);
    if (options.batch_norm && l < num_hidden_) norms_.emplace_back(name, widths[l], options.norm, parameters);
    dropout_streams_.push_back(HashBytes(name));
    in = widths[l];
  }
  outputs_.resize(layers_.size() - 1);
  gradients_.resize(layers_.size());
}

void Mlp::Forward(absl::Span<const ConstMatrix> x, size_t batch, bool training, uint64_t step, Matrix y) {
  y_ = y;
  const float rate = training ? dropout_ : 0.0f;
  hidden_scale_ = MakeDropout(rate, seed_, step, 0).scale;
  ConstMatrix previous;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const Linear& layer = layers_[l];
    const bool last = l + 1 == layers_.size();
    const Matrix out = last ? y : Matrix{Grow(outputs_[l], batch * layer.out()), layer.out(), layer.out()};
    layer.Multiply(l == 0 ? x : absl::MakeConstSpan(&previous, 1), batch, out);
    if (HasNorm(l)) norms_[l].Forward(batch, training, out);
    if (HasRelu(l)) {
      const float layer_rate = l < num_hidden_ ? rate : 0.0f;
      BiasRelu(layer.bias(), MakeDropout(layer_rate, seed_, step, dropout_streams_[l]), batch, out);
    } else if (HasTanh(l)) {
      BiasTanh(layer.bias(), batch, out);
    } else {
      AddBias(layer.bias(), batch, out);
    }
    previous = out;
  }
}

void Mlp::BackwardInputs(size_t batch, ConstMatrix dy, float beta, absl::Span<const Matrix> dx) {
  for (size_t l = layers_.size(); l-- > 0;) {
    Linear& layer = layers_[l];
    const size_t out = layer.out();
    const bool last = l + 1 == layers_.size();
    const ConstMatrix y = last ? ConstMatrix(y_) : ConstMatrix{outputs_[l].data(), out, out};
    if (HasTanh(l)) {
      const Matrix scaled{Grow(gradients_[l], batch * out), out, out};
      BiasTanhBackward(y, dy, batch, scaled, layer.bias_gradient());
      if (HasNorm(l)) norms_[l].Backward(batch, scaled);
      dy = scaled;
    } else if (HasRelu(l)) {
      const Matrix masked{Grow(gradients_[l], batch * out), out, out};
      BiasReluBackward(y, dy, l < num_hidden_ ? hidden_scale_ : 1.0f, batch, masked, layer.bias_gradient());
      if (HasNorm(l)) norms_[l].Backward(batch, masked);
      dy = masked;
    } else {
      ColumnSums(dy, batch, layer.bias_gradient());
    }
    if (last) d_last_ = dy;
    if (l == 0) {
      if (!dx.empty()) layer.InputGradient(dy, batch, beta, dx);
    } else {
      // Uses the buffer that the next iteration's activation then changes in place.
      const size_t in = layer.in();
      const Matrix d_input{Grow(gradients_[l - 1], batch * in), in, in};
      layer.InputGradient(dy, batch, 0.0f, absl::MakeConstSpan(&d_input, 1));
      dy = d_input;
    }
  }
}

void Mlp::BackwardParameters(absl::Span<const ConstMatrix> x, size_t batch, GradientsReady ready) {
  for (size_t l = layers_.size(); l-- > 0;) {
    Linear& layer = layers_[l];
    const size_t out = layer.out();
    const ConstMatrix dy = l + 1 == layers_.size() ? d_last_ : ConstMatrix{gradients_[l].data(), out, out};
    if (l == 0) {
      layer.WeightGradient(x, batch, dy);
    } else {
      const ConstMatrix input{outputs_[l - 1].data(), layer.in(), layer.in()};
      layer.WeightGradient(absl::MakeConstSpan(&input, 1), batch, dy);
    }
    ready(layer.begin(), HasNorm(l) ? norms_[l].end() : layer.end());
  }
}

}  // namespace tandem::worker
