// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/batch_norm.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/nn/batch_norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DD = hn::ScalableTag<double>;

// Handles kVectors adjacent vectors of columns, down all rows, so that their sums stay in registers.
template <size_t kVectors>
void SumsOfColumns(ConstMatrix a, ConstMatrix b, size_t rows, double* sums, double* products) {
  const DD d;
  const hn::Rebind<float, DD> df;
  const size_t lanes = hn::Lanes(d);
  hn::Vec<DD> sum[kVectors], product[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = product[v] = hn::Zero(d);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto x = hn::PromoteTo(d, hn::LoadU(df, a.data + row * a.ld + v * lanes));
      const auto y = hn::PromoteTo(d, hn::LoadU(df, b.data + row * b.ld + v * lanes));
      sum[v] = hn::Add(sum[v], x);
      product[v] = hn::MulAdd(x, y, product[v]);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) {
    hn::StoreU(sum[v], d, sums + v * lanes);
    hn::StoreU(product[v], d, products + v * lanes);
  }
}

// sums[c] = sum of a's column c; products[c] = dot product of the columns c of a and b. In double precision,
// so that the variance can be computed from the squares.
void SumsT(ConstMatrix a, ConstMatrix b, size_t rows, double* sums, double* products) {
  const size_t lanes = hn::Lanes(DD());
  size_t col = 0;
  const auto at = [&](auto columns) {
    columns(ConstMatrix{a.data + col, a.ld, 0}, ConstMatrix{b.data + col, b.ld, 0}, rows, sums + col,
            products + col);
  };
  for (; col + 4 * lanes <= a.cols; col += 4 * lanes) at(SumsOfColumns<4>);
  for (; col + lanes <= a.cols; col += lanes) at(SumsOfColumns<1>);
  for (; col < a.cols; ++col) {
    double sum = 0, product = 0;
    for (size_t row = 0; row < rows; ++row) {
      const double x = a.data[row * a.ld + col];
      sum += x;
      product += x * b.data[row * b.ld + col];
    }
    sums[col] = sum;
    products[col] = product;
  }
}

// normalized = (y - mean) * inverse; y = normalized * scale.
void NormalizeT(const float* mean, const float* inverse, const float* scale, size_t rows, Matrix y,
                Matrix normalized) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    float* out = y.data + row * y.ld;
    float* kept = normalized.data + row * normalized.ld;
    size_t col = 0;
    for (; col + lanes <= y.cols; col += lanes) {
      const auto centered = hn::Sub(hn::LoadU(d, out + col), hn::LoadU(d, mean + col));
      const auto value = hn::Mul(centered, hn::LoadU(d, inverse + col));
      hn::StoreU(value, d, kept + col);
      hn::StoreU(hn::Mul(value, hn::LoadU(d, scale + col)), d, out + col);
    }
    for (; col < y.cols; ++col) {
      kept[col] = (out[col] - mean[col]) * inverse[col];
      out[col] = kept[col] * scale[col];
    }
  }
}

// dy = (dy - d_mean - normalized * d_slope) * inverse * scale.
void NormalizeBackwardT(ConstMatrix normalized, const float* d_mean, const float* d_slope,
                        const float* inverse, const float* scale, size_t rows, Matrix dy) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    float* g = dy.data + row * dy.ld;
    const float* x = normalized.data + row * normalized.ld;
    size_t col = 0;
    for (; col + lanes <= dy.cols; col += lanes) {
      const auto centered = hn::Sub(hn::LoadU(d, g + col), hn::LoadU(d, d_mean + col));
      const auto rest = hn::NegMulAdd(hn::LoadU(d, x + col), hn::LoadU(d, d_slope + col), centered);
      const auto factor = hn::Mul(hn::LoadU(d, inverse + col), hn::LoadU(d, scale + col));
      hn::StoreU(hn::Mul(rest, factor), d, g + col);
    }
    for (; col < dy.cols; ++col) {
      g[col] = (g[col] - d_mean[col] - x[col] * d_slope[col]) * (inverse[col] * scale[col]);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(SumsT);
HWY_EXPORT(NormalizeT);
HWY_EXPORT(NormalizeBackwardT);

BatchNorm::BatchNorm(absl::string_view name, int width, const BatchNormOptions& options,
                     Parameters* parameters)
    : width_(static_cast<size_t>(width)),
      options_(options),
      parameters_(parameters),
      scale_(parameters->AddOnes(absl::StrCat(name, ".scale"), width)),
      mean_(parameters->AddRunningAverages(absl::StrCat(name, ".mean"), width, 0.0f)),
      variance_(parameters->AddRunningAverages(absl::StrCat(name, ".variance"), width, 1.0f)),
      largest_batch_(parameters->AddRunningAverages(absl::StrCat(name, ".largest_batch"), 1, 0.0f)),
      mean_of_batch_(width_),
      inverse_(width_),
      d_mean_(width_),
      d_slope_(width_),
      sums_(2 * width_ + 1) {}

void BatchNorm::Sum(std::vector<double>* values) const {
  if (options_.sum != nullptr && *options_.sum) (*options_.sum)(absl::MakeSpan(*values));
}

void BatchNorm::Forward(size_t batch, bool training, Matrix y) {
  float* running_mean = parameters_->running_average(mean_);
  float* running_variance = parameters_->running_average(variance_);
  if (training) {
    HWY_DYNAMIC_DISPATCH(SumsT)(y, y, batch, sums_.data(), sums_.data() + width_);
    sums_.back() = static_cast<double>(batch);
    Sum(&sums_);
    const double n = sums_.back();
    float& largest = *parameters_->running_average(largest_batch_);
    largest = std::max(largest, static_cast<float>(n));
    const double momentum = options_.momentum * std::min(1.0, n / largest);
    for (size_t c = 0; c < width_; ++c) {
      const double mean = sums_[c] / n;
      const double variance = std::max(0.0, sums_[width_ + c] / n - mean * mean);
      mean_of_batch_[c] = static_cast<float>(mean);
      inverse_[c] = static_cast<float>(1.0 / std::sqrt(variance + options_.epsilon));
      running_mean[c] = static_cast<float>((1 - momentum) * running_mean[c] + momentum * mean);
      // A single example says nothing about the variance.
      if (n < 2) continue;
      running_variance[c] =
          static_cast<float>((1 - momentum) * running_variance[c] + momentum * variance * n / (n - 1));
    }
  } else {
    for (size_t c = 0; c < width_; ++c) {
      mean_of_batch_[c] = running_mean[c];
      inverse_[c] = static_cast<float>(1.0 / std::sqrt(double{running_variance[c]} + options_.epsilon));
    }
  }
  HWY_DYNAMIC_DISPATCH(NormalizeT)
  (mean_of_batch_.data(), inverse_.data(), parameters_->value(scale_), batch, y,
   {Grow(normalized_, batch * width_), width_, width_});
}

void BatchNorm::Backward(size_t batch, Matrix dy) {
  const ConstMatrix normalized{normalized_.data(), width_, width_};
  HWY_DYNAMIC_DISPATCH(SumsT)(dy, normalized, batch, sums_.data(), sums_.data() + width_);
  sums_.back() = static_cast<double>(batch);
  // The scale's gradient is summed over the workers with those of all parameters.
  float* d_scale = parameters_->gradient(scale_);
  for (size_t c = 0; c < width_; ++c) d_scale[c] = static_cast<float>(sums_[width_ + c]);
  Sum(&sums_);
  const double n = sums_.back();
  for (size_t c = 0; c < width_; ++c) {
    d_mean_[c] = static_cast<float>(sums_[c] / n);
    d_slope_[c] = static_cast<float>(sums_[width_ + c] / n);
  }
  HWY_DYNAMIC_DISPATCH(NormalizeBackwardT)
  (normalized, d_mean_.data(), d_slope_.data(), inverse_.data(), parameters_->value(scale_), batch, dy);
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
