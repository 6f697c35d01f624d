// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/activation.h"

#include <algorithm>
#include <cmath>

#include "base/random.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/nn/activation.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// Must come after foreach_target.h.
#include "hwy/contrib/math/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using DU = hn::RebindToUnsigned<D>;
using V = hn::Vec<D>;
using VU = hn::Vec<DU>;

// The hash of Keeps() (below) for many positions at once.
VU Hash(const Dropout& dropout, VU position) {
  const DU du;
  VU x = hn::Xor(position, hn::Set(du, dropout.key[0]));
  for (int round = 0; round < 2; ++round) {
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<16>(x)), hn::Set(du, 0x7feb352du));
    x = hn::Mul(hn::Xor(x, hn::ShiftRight<15>(x)), hn::Set(du, 0x846ca68bu));
    x = hn::Xor(x, hn::ShiftRight<16>(x));
    x = hn::Add(x, hn::Set(du, dropout.key[1]));
  }
  return x;
}

void AddBiasT(const float* bias, size_t rows, Matrix y) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    float* out = y.data + row * y.ld;
    size_t col = 0;
    for (; col + lanes <= y.cols; col += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, out + col), hn::LoadU(d, bias + col)), d, out + col);
    }
    for (; col < y.cols; ++col) out[col] += bias[col];
  }
}

void BiasReluT(const float* bias, const Dropout& dropout, size_t rows, Matrix y) {
  const D d;
  const DU du;
  const size_t lanes = hn::Lanes(d);
  const V zero = hn::Zero(d);
  const bool drops = dropout.threshold != 0;
  for (size_t row = 0; row < rows; ++row) {
    float* out = y.data + row * y.ld;
    const uint32_t base = static_cast<uint32_t>(row * y.cols);
    size_t col = 0;
    for (; col + lanes <= y.cols; col += lanes) {
      V v = hn::Max(hn::Add(hn::LoadU(d, out + col), hn::LoadU(d, bias + col)), zero);
      if (drops) {
        const VU hash = Hash(dropout, hn::Iota(du, base + static_cast<uint32_t>(col)));
        // Unsigned comparison: max(hash, threshold) == hash.
        const auto keep = hn::RebindMask(d, hn::Eq(hn::Max(hash, hn::Set(du, dropout.threshold)), hash));
        v = hn::IfThenElseZero(keep, hn::Mul(v, hn::Set(d, dropout.scale)));
      }
      hn::StoreU(v, d, out + col);
    }
    for (; col < y.cols; ++col) {
      const float v = std::max(out[col] + bias[col], 0.0f);
      out[col] = Keeps(dropout, base + static_cast<uint32_t>(col)) ? v * dropout.scale : 0.0f;
    }
  }
}

// Handles kVectors adjacent vectors of columns, down all rows, so that their sums stay in registers.
template <size_t kVectors>
void BiasReluBackwardColumns(ConstMatrix y, ConstMatrix dy, float scale, size_t rows, Matrix dx,
                             float* sums) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V zero = hn::Zero(d);
  const V factor = hn::Set(d, scale);
  V sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = zero;
  for (size_t row = 0; row < rows; ++row) {
    for (size_t v = 0; v < kVectors; ++v) {
      const auto on = hn::Gt(hn::LoadU(d, y.data + row * y.ld + v * lanes), zero);
      const V g = hn::IfThenElseZero(on, hn::Mul(hn::LoadU(d, dy.data + row * dy.ld + v * lanes), factor));
      hn::StoreU(g, d, dx.data + row * dx.ld + v * lanes);
      sum[v] = hn::Add(sum[v], g);
    }
  }
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, sums + v * lanes);
}

void BiasReluBackwardT(ConstMatrix y, ConstMatrix dy, float scale, size_t rows, Matrix dx, float* sums) {
  const size_t lanes = hn::Lanes(D());
  const size_t cols = dx.cols;
  auto at = [&](size_t col, auto columns) {
    columns(ConstMatrix{y.data + col, y.ld, 0}, ConstMatrix{dy.data + col, dy.ld, 0}, scale, rows,
            Matrix{dx.data + col, dx.ld, 0}, sums + col);
  };
  size_t col = 0;
  for (; col + 4 * lanes <= cols; col += 4 * lanes) at(col, BiasReluBackwardColumns<4>);
  for (; col + lanes <= cols; col += lanes) at(col, BiasReluBackwardColumns<1>);
  for (; col < cols; ++col) {
    float sum = 0.0f;
    for (size_t row = 0; row < rows; ++row) {
      const float g = y.data[row * y.ld + col] > 0.0f ? dy.data[row * dy.ld + col] * scale : 0.0f;
      dx.data[row * dx.ld + col] = g;
      sum += g;
    }
    sums[col] = sum;
  }
}

template <size_t kVectors>
void ColumnSumsOf(ConstMatrix x, size_t rows, float* sums) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[kVectors];
  for (size_t v = 0; v < kVectors; ++v) sum[v] = hn::Zero(d);
  for (size_t row = 0; row < rows; ++row) {
    for (size_t v = 0; v < kVectors; ++v)
      sum[v] = hn::Add(sum[v], hn::LoadU(d, x.data + row * x.ld + v * lanes));
  }
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[v], d, sums + v * lanes);
}

float SumOf(const float* x, size_t n) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum = hn::Zero(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) sum = hn::Add(sum, hn::LoadU(d, x + i));
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; i < n; ++i) total += x[i];
  return total;
}

void ColumnSumsT(ConstMatrix x, size_t rows, float* sums) {
  if (x.cols == 1 && x.ld == 1) {
    sums[0] = SumOf(x.data, rows);
    return;
  }
  const size_t lanes = hn::Lanes(D());
  size_t col = 0;
  for (; col + 4 * lanes <= x.cols; col += 4 * lanes)
    ColumnSumsOf<4>({x.data + col, x.ld, 0}, rows, sums + col);
  for (; col + lanes <= x.cols; col += lanes) ColumnSumsOf<1>({x.data + col, x.ld, 0}, rows, sums + col);
  for (; col < x.cols; ++col) {
    float sum = 0.0f;
    for (size_t row = 0; row < rows; ++row) sum += x.data[row * x.ld + col];
    sums[col] = sum;
  }
}

void BiasTanhT(const float* bias, size_t rows, Matrix y) {
  const D d;
  const hn::CappedTag<float, 1> d1;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    float* out = y.data + row * y.ld;
    size_t col = 0;
    for (; col + lanes <= y.cols; col += lanes) {
      hn::StoreU(hn::CallTanh(d, hn::Add(hn::LoadU(d, out + col), hn::LoadU(d, bias + col))), d, out + col);
    }
    for (; col < y.cols; ++col) {
      hn::StoreU(hn::CallTanh(d1, hn::Add(hn::LoadU(d1, out + col), hn::LoadU(d1, bias + col))), d1,
                 out + col);
    }
  }
}

void BiasTanhBackwardT(ConstMatrix y, ConstMatrix dy, size_t rows, Matrix dx, float* sums) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  const V one = hn::Set(d, 1.0f);
  for (size_t row = 0; row < rows; ++row) {
    const float* const of = y.data + row * y.ld;
    const float* const in = dy.data + row * dy.ld;
    float* const out = dx.data + row * dx.ld;
    size_t col = 0;
    for (; col + lanes <= dx.cols; col += lanes) {
      const V v = hn::LoadU(d, of + col);
      hn::StoreU(hn::Mul(hn::LoadU(d, in + col), hn::NegMulAdd(v, v, one)), d, out + col);
    }
    for (; col < dx.cols; ++col) out[col] = in[col] * (1.0f - of[col] * of[col]);
  }
  ColumnSumsT(dx, rows, sums);
}

void AddRowSumsT(ConstMatrix x, size_t rows, float* sums) {
  for (size_t row = 0; row < rows; ++row) sums[row] += SumOf(x.data + row * x.ld, x.cols);
}

void FillRowsT(const float* values, size_t rows, Matrix x) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t row = 0; row < rows; ++row) {
    float* out = x.data + row * x.ld;
    const V v = hn::Set(d, values[row]);
    size_t col = 0;
    for (; col + lanes <= x.cols; col += lanes) hn::StoreU(v, d, out + col);
    for (; col < x.cols; ++col) out[col] = values[row];
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
HWY_EXPORT(AddBiasT);
HWY_EXPORT(BiasReluT);
HWY_EXPORT(BiasReluBackwardT);
HWY_EXPORT(BiasTanhT);
HWY_EXPORT(BiasTanhBackwardT);
HWY_EXPORT(ColumnSumsT);
HWY_EXPORT(AddRowSumsT);
HWY_EXPORT(FillRowsT);

Dropout MakeDropout(float rate, uint64_t seed, uint64_t step, uint64_t layer) {
  if (rate <= 0.0f) return {};
  const uint64_t key = Mix64(Mix64(seed, step), layer);
  Dropout dropout;
  dropout.key[0] = static_cast<uint32_t>(key);
  dropout.key[1] = static_cast<uint32_t>(key >> 32);
  dropout.threshold =
      static_cast<uint32_t>(std::min(std::ldexp(static_cast<double>(rate), 32), 4294967295.0));
  dropout.scale = 1.0f / (1.0f - rate);
  return dropout;
}

// Two rounds of the 32-bit mixer "lowbias32" (Wellons, 2018).
bool Keeps(const Dropout& dropout, uint32_t position) {
  uint32_t x = position ^ dropout.key[0];
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    x ^= x >> 16;
    x += dropout.key[1];
  }
  return x >= dropout.threshold;
}

void AddBias(const float* bias, size_t rows, Matrix y) { HWY_DYNAMIC_DISPATCH(AddBiasT)(bias, rows, y); }

void BiasRelu(const float* bias, const Dropout& dropout, size_t rows, Matrix y) {
  HWY_DYNAMIC_DISPATCH(BiasReluT)(bias, dropout, rows, y);
}

void BiasReluBackward(ConstMatrix y, ConstMatrix dy, float scale, size_t rows, Matrix dx,
                      float* bias_gradient) {
  HWY_DYNAMIC_DISPATCH(BiasReluBackwardT)(y, dy, scale, rows, dx, bias_gradient);
}

void BiasTanh(const float* bias, size_t rows, Matrix y) { HWY_DYNAMIC_DISPATCH(BiasTanhT)(bias, rows, y); }

void BiasTanhBackward(ConstMatrix y, ConstMatrix dy, size_t rows, Matrix dx, float* bias_gradient) {
  HWY_DYNAMIC_DISPATCH(BiasTanhBackwardT)(y, dy, rows, dx, bias_gradient);
}

void ColumnSums(ConstMatrix x, size_t rows, float* sums) { HWY_DYNAMIC_DISPATCH(ColumnSumsT)(x, rows, sums); }

void AddRowSums(ConstMatrix x, size_t rows, float* sums) { HWY_DYNAMIC_DISPATCH(AddRowSumsT)(x, rows, sums); }

void FillRows(const float* values, size_t rows, Matrix x) {
  HWY_DYNAMIC_DISPATCH(FillRowsT)(values, rows, x);
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
