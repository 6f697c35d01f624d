// SPDX-License-Identifier: Apache-2.0
#include "worker/models/wide.h"

#include "worker/nn/activation.h"
#include "worker/nn/gemm.h"

namespace tandem::worker {

Wide::Wide(const ModelOptions& options, bool has_bias, Parameters* parameters)
    : num_dense_(options.num_dense),
      num_sparse_(options.num_sparse),
      has_bias_(has_bias),
      parameters_(parameters),
      weight_(parameters->values().size()),
      bias_(weight_ + num_dense_) {
  if (num_dense_ > 0) parameters->AddZeros("wide.weight", {1, options.num_dense}, /*decay=*/true);
  if (has_bias_) parameters->AddZeros("wide.bias", {1}, /*decay=*/false);
}

void Wide::Forward(const ModelInput& input, absl::Span<float> logits) const {
  if (num_dense_ > 0) {
    Gemm(Transpose::kNo, Transpose::kYes, input.batch, 1, num_dense_, 1.0f, input.dense, num_dense_,
         parameters_->value(weight_), num_dense_, 1.0f, logits.data(), 1);
  }
  if (num_sparse_ > 0) AddRowSums({input.wide, num_sparse_, num_sparse_}, input.batch, logits.data());
  if (has_bias_) AddBias(parameters_->value(bias_), input.batch, {logits.data(), 1, 1});
}

void Wide::BackwardInputs(absl::Span<const float> d_logits, float* d_wide) const {
  if (d_wide != nullptr && num_sparse_ > 0)
    FillRows(d_logits.data(), d_logits.size(), {d_wide, num_sparse_, num_sparse_});
}

void Wide::BackwardParameters(const ModelInput& input, absl::Span<const float> d_logits,
                              GradientsReady ready) {
  if (num_dense_ > 0) {
    Gemm(Transpose::kYes, Transpose::kNo, 1, num_dense_, input.batch, 1.0f, d_logits.data(), 1, input.dense,
         num_dense_, 0.0f, parameters_->gradient(weight_), num_dense_);
  }
  if (has_bias_) ColumnSums({d_logits.data(), 1, 1}, input.batch, parameters_->gradient(bias_));
  const size_t end = bias_ + (has_bias_ ? 1 : 0);
  if (end > weight_) ready(weight_, end);
}

}  // namespace tandem::worker
