// SPDX-License-Identifier: Apache-2.0
// The cross layers of the first DCN, whose weight is a vector.

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/models/cross.h"
#include "worker/nn/activation.h"
#include "worker/nn/gemm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/models/vector_cross.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// next = x0 * dots[row] + (bias + x).
void VectorCrossT(ConstMatrix x0, ConstMatrix x, const float* dots, const float* bias, size_t rows,
                  Matrix next) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    const float* x0_row = x0.data + row * x0.ld;
    const float* x_row = x.data + row * x.ld;
    float* next_row = next.data + row * next.ld;
    const auto dot = hn::Set(d, dots[row]);
    size_t col = 0;
    for (; col + lanes <= next.cols; col += lanes) {
      const auto sum = hn::Add(hn::LoadU(d, bias + col), hn::LoadU(d, x_row + col));
      hn::StoreU(hn::MulAdd(hn::LoadU(d, x0_row + col), dot, sum), d, next_row + col);
    }
    for (; col < next.cols; ++col) next_row[col] = x0_row[col] * dots[row] + (bias[col] + x_row[col]);
  }
}

// d_dots[row] = g . x0; dx0 += dots[row] * g; dx = g + d_dots[row] * weight. `dx` may be `g`.
void VectorCrossBackwardT(ConstMatrix x0, const float* dots, const float* weight, ConstMatrix g, size_t rows,
                          float* d_dots, Matrix dx0, Matrix dx) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    const float* x0_row = x0.data + row * x0.ld;
    const float* g_row = g.data + row * g.ld;
    float* dx0_row = dx0.data + row * dx0.ld;
    float* dx_row = dx.data + row * dx.ld;
    auto sums = hn::Zero(d);
    size_t col = 0;
    for (; col + lanes <= dx.cols; col += lanes) {
      sums = hn::MulAdd(hn::LoadU(d, g_row + col), hn::LoadU(d, x0_row + col), sums);
    }
    float sum = hn::GetLane(hn::SumOfLanes(d, sums));
    for (; col < dx.cols; ++col) sum += g_row[col] * x0_row[col];
    d_dots[row] = sum;
    const auto dot = hn::Set(d, dots[row]), d_dot = hn::Set(d, sum);
    for (col = 0; col + lanes <= dx.cols; col += lanes) {
      const auto gradient = hn::LoadU(d, g_row + col);
      hn::StoreU(hn::MulAdd(dot, gradient, hn::LoadU(d, dx0_row + col)), d, dx0_row + col);
      hn::StoreU(hn::MulAdd(d_dot, hn::LoadU(d, weight + col), gradient), d, dx_row + col);
    }
    for (; col < dx.cols; ++col) {
      const float gradient = g_row[col];
      dx0_row[col] += dots[row] * gradient;
      dx_row[col] = gradient + sum * weight[col];
    }
  }
}

void AddMatrixT(ConstMatrix x, size_t rows, Matrix sum) {
  for (size_t row = 0; row < rows; ++row) {
    for (size_t col = 0; col < sum.cols; ++col) sum.data[row * sum.ld + col] += x.data[row * x.ld + col];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(VectorCrossT);
HWY_EXPORT(VectorCrossBackwardT);
HWY_EXPORT(AddMatrixT);

namespace {

class VectorCross final : public CrossNetwork {
 public:
  VectorCross(absl::string_view name, int width, int layers, Parameters* parameters)
      : width_(width), parameters_(parameters), layers_(layers) {
    TANDEM_CHECK(layers > 0);
    for (int l = 0; l < layers; ++l) {
      layers_[l].weight = parameters->AddXavierNormal(absl::StrCat(name, ".", l, ".weight"), 1, width);
      layers_[l].bias = parameters->AddZeros(absl::StrCat(name, ".", l, ".bias"), {width}, /*decay=*/false);
    }
  }

  void Forward(ConstMatrix x0, size_t batch, Matrix y) override {
    ConstMatrix x = x0;
    for (size_t l = 0; l < layers_.size(); ++l) {
      Layer& layer = layers_[l];
      const bool last = l + 1 == layers_.size();
      const Matrix next = last ? y : Matrix{Grow(layers_[l + 1].input, batch * width_), width_, width_};
      Gemm(Transpose::kNo, Transpose::kYes, batch, 1, width_, 1.0f, x.data, x.ld,
           parameters_->value(layer.weight), width_, 0.0f, Grow(layer.dots, batch), 1);
      HWY_DYNAMIC_DISPATCH(VectorCrossT)
      (x0, x, layer.dots.data(), parameters_->value(layer.bias), batch, next);
      x = next;
    }
  }

  void BackwardInputs(ConstMatrix x0, size_t batch, ConstMatrix dy, Matrix dx0) override {
    const Matrix g{Grow(d_input_, batch * width_), width_, width_};
    for (size_t l = layers_.size(); l-- > 0;) {
      Layer& layer = layers_[l];
      const ConstMatrix d_output = l + 1 == layers_.size() ? dy : ConstMatrix(g);
      ColumnSums(d_output, batch, parameters_->gradient(layer.bias));
      HWY_DYNAMIC_DISPATCH(VectorCrossBackwardT)
      (x0, layer.dots.data(), parameters_->value(layer.weight), d_output, batch, Grow(layer.d_dots, batch),
       dx0, g);
    }
    HWY_DYNAMIC_DISPATCH(AddMatrixT)(g, batch, dx0);
  }

  void BackwardParameters(ConstMatrix x0, size_t batch, GradientsReady ready) override {
    for (size_t l = layers_.size(); l-- > 0;) {
      const Layer& layer = layers_[l];
      const ConstMatrix x = l == 0 ? x0 : ConstMatrix{layer.input.data(), width_, width_};
      Gemm(Transpose::kYes, Transpose::kNo, 1, width_, batch, 1.0f, layer.d_dots.data(), 1, x.data, x.ld,
           0.0f, parameters_->gradient(layer.weight), width_);
      ready(layer.weight, layer.bias + width_);
    }
  }

 private:
  struct Layer {
    size_t weight = 0;  // offsets in the flat array of parameters
    size_t bias = 0;
    AlignedFloats input;   // x_l, for l > 0
    AlignedFloats dots;    // w_l . x_l of each example
    AlignedFloats d_dots;  // gradients of `dots`
  };

  const size_t width_;
  Parameters* const parameters_;
  std::vector<Layer> layers_;
  AlignedFloats d_input_;
};

}  // namespace

std::unique_ptr<CrossNetwork> MakeVectorCross(absl::string_view name, int width, int layers,
                                              Parameters* parameters) {
  return std::make_unique<VectorCross>(name, width, layers, parameters);
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
