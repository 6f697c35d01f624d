// SPDX-License-Identifier: Apache-2.0
#include "worker/models/cross.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "worker/nn/activation.h"
#include "worker/nn/linear.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/models/cross.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;

// product += bias; next = x0 * product + x.
void CrossT(ConstMatrix x0, ConstMatrix x, const float* bias, size_t rows, Matrix product, Matrix next) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    const float* x0_row = x0.data + row * x0.ld;
    const float* x_row = x.data + row * x.ld;
    float* product_row = product.data + row * product.ld;
    float* next_row = next.data + row * next.ld;
    size_t col = 0;
    for (; col + lanes <= product.cols; col += lanes) {
      const auto u = hn::Add(hn::LoadU(d, product_row + col), hn::LoadU(d, bias + col));
      hn::StoreU(u, d, product_row + col);
      hn::StoreU(hn::MulAdd(hn::LoadU(d, x0_row + col), u, hn::LoadU(d, x_row + col)), d, next_row + col);
    }
    for (; col < product.cols; ++col) {
      product_row[col] += bias[col];
      next_row[col] = x0_row[col] * product_row[col] + x_row[col];
    }
  }
}

// d_product = g * x0; dx0 += g * product; dx = g unless it is g.
void CrossBackwardT(ConstMatrix x0, ConstMatrix product, ConstMatrix g, size_t rows, Matrix d_product,
                    Matrix dx0, Matrix dx) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    const float* x0_row = x0.data + row * x0.ld;
    const float* product_row = product.data + row * product.ld;
    const float* g_row = g.data + row * g.ld;
    float* d_product_row = d_product.data + row * d_product.ld;
    float* dx0_row = dx0.data + row * dx0.ld;
    float* dx_row = dx.data + row * dx.ld;
    size_t col = 0;
    for (; col + lanes <= d_product.cols; col += lanes) {
      const auto gradient = hn::LoadU(d, g_row + col);
      hn::StoreU(hn::Mul(gradient, hn::LoadU(d, x0_row + col)), d, d_product_row + col);
      hn::StoreU(hn::MulAdd(gradient, hn::LoadU(d, product_row + col), hn::LoadU(d, dx0_row + col)), d,
                 dx0_row + col);
      hn::StoreU(gradient, d, dx_row + col);
    }
    for (; col < d_product.cols; ++col) {
      const float gradient = g_row[col];
      d_product_row[col] = gradient * x0_row[col];
      dx0_row[col] += gradient * product_row[col];
      dx_row[col] = gradient;
    }
  }
}

void AddT(ConstMatrix x, size_t rows, Matrix sum) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    const float* in = x.data + row * x.ld;
    float* out = sum.data + row * sum.ld;
    size_t col = 0;
    for (; col + lanes <= sum.cols; col += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, out + col), hn::LoadU(d, in + col)), d, out + col);
    }
    for (; col < sum.cols; ++col) out[col] += in[col];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(CrossT);
HWY_EXPORT(CrossBackwardT);
HWY_EXPORT(AddT);

namespace {

class MatrixCross final : public CrossNetwork {
 public:
  MatrixCross(absl::string_view name, int width, int layers, Parameters* parameters) : width_(width) {
    TANDEM_CHECK(layers > 0);
    for (int l = 0; l < layers; ++l)
      layers_.emplace_back(absl::StrCat(name, ".", l), width, width, parameters);
    products_.resize(layers);
    d_products_.resize(layers);
    inputs_.resize(layers);
  }

  void Forward(ConstMatrix x0, size_t batch, Matrix y) override {
    ConstMatrix x = x0;
    for (size_t l = 0; l < layers_.size(); ++l) {
      const bool last = l + 1 == layers_.size();
      const Matrix product{Grow(products_[l], batch * width_), width_, width_};
      const Matrix next = last ? y : Matrix{Grow(inputs_[l + 1], batch * width_), width_, width_};
      layers_[l].Multiply(absl::MakeConstSpan(&x, 1), batch, product);
      HWY_DYNAMIC_DISPATCH(CrossT)(x0, x, layers_[l].bias(), batch, product, next);
      x = next;
    }
  }

  void BackwardInputs(ConstMatrix x0, size_t batch, ConstMatrix dy, Matrix dx0) override {
    const Matrix g{Grow(d_input_, batch * width_), width_, width_};
    for (size_t l = layers_.size(); l-- > 0;) {
      Linear& layer = layers_[l];
      const bool last = l + 1 == layers_.size();
      const ConstMatrix product{products_[l].data(), width_, width_};
      const Matrix d_product{Grow(d_products_[l], batch * width_), width_, width_};
      HWY_DYNAMIC_DISPATCH(CrossBackwardT)(x0, product, last ? dy : g, batch, d_product, dx0, g);
      ColumnSums(d_product, batch, layer.bias_gradient());
      layer.InputGradient(d_product, batch, /*beta=*/1.0f, absl::MakeConstSpan(&g, 1));
    }
    HWY_DYNAMIC_DISPATCH(AddT)(g, batch, dx0);
  }

  void BackwardParameters(ConstMatrix x0, size_t batch, GradientsReady ready) override {
    for (size_t l = layers_.size(); l-- > 0;) {
      Linear& layer = layers_[l];
      const ConstMatrix x = l == 0 ? x0 : ConstMatrix{inputs_[l].data(), width_, width_};
      layer.WeightGradient(absl::MakeConstSpan(&x, 1), batch, {d_products_[l].data(), width_, width_});
      ready(layer.begin(), layer.end());
    }
  }

 private:
  const size_t width_;
  std::vector<Linear> layers_;
  std::vector<AlignedFloats> products_;    // W_l x_l + b_l
  std::vector<AlignedFloats> inputs_;      // x_l for l > 0
  std::vector<AlignedFloats> d_products_;  // gradients of products_
  AlignedFloats d_input_;
};

}  // namespace

std::unique_ptr<CrossNetwork> MakeMatrixCross(absl::string_view name, int width, int layers,
                                              Parameters* parameters) {
  return std::make_unique<MatrixCross>(name, width, layers, parameters);
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
