// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/linear.h"

#include "absl/strings/str_cat.h"
#include "worker/nn/gemm.h"

namespace tandem::worker {

Linear::Linear(absl::string_view name, int in, int out, Parameters* parameters,
               const WeightInitializer& initializer)
    : in_(in),
      out_(out),
      parameters_(parameters),
      weight_(initializer.orthogonal
                  ? parameters->AddOrthogonal(absl::StrCat(name, ".weight"), out, in, initializer.gain)
                  : parameters->AddXavierNormal(absl::StrCat(name, ".weight"), out, in)),
      bias_(parameters->AddZeros(absl::StrCat(name, ".bias"), {out}, /*decay=*/false)) {}

void Linear::Multiply(absl::Span<const ConstMatrix> x, size_t batch, Matrix y) const {
  const float* weight = parameters_->value(weight_);
  float beta = 0.0f;
  for (const ConstMatrix& part : x) {
    if (part.cols == 0) continue;
    Gemm(Transpose::kNo, Transpose::kYes, batch, out_, part.cols, 1.0f, part.data, part.ld, weight, in_, beta,
         y.data, y.ld);
    weight += part.cols;
    beta = 1.0f;
  }
}

void Linear::WeightGradient(absl::Span<const ConstMatrix> x, size_t batch, ConstMatrix dy) {
  float* gradient = parameters_->gradient(weight_);
  for (const ConstMatrix& part : x) {
    Gemm(Transpose::kYes, Transpose::kNo, out_, part.cols, batch, 1.0f, dy.data, dy.ld, part.data, part.ld,
         0.0f, gradient, in_);
    gradient += part.cols;
  }
}

void Linear::InputGradient(ConstMatrix dy, size_t batch, float beta, absl::Span<const Matrix> dx) const {
  const float* weight = parameters_->value(weight_);
  for (const Matrix& part : dx) {
    if (part.data != nullptr) {
      Gemm(Transpose::kNo, Transpose::kNo, batch, part.cols, out_, 1.0f, dy.data, dy.ld, weight, in_, beta,
           part.data, part.ld);
    }
    weight += part.cols;
  }
}

}  // namespace tandem::worker
