#include "worker/models/nn/interaction.h"

#include <algorithm>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/models/nn/interaction.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Rows of the Gram matrix computed together: with two vectors each they fill 12 of AVX2's 16 registers.
constexpr size_t kBlock = 6;

// Example b's vectors, dim floats each.
struct Rows {
  Rows(const VectorSet& z, size_t b)
      : first(z.first.data != nullptr ? z.first.data + b * z.first.ld : nullptr),
        rest(z.rest + b * z.num_rest * z.dim),
        dim(z.dim) {}
  const float* operator[](size_t i) const {
    if (first == nullptr) return rest + i * dim;
    return i == 0 ? first : rest + (i - 1) * dim;
  }

  const float* first;
  const float* rest;
  size_t dim;
};

// zt[d * ld + i] = z_i[d], in 4x4 blocks. Columns n and beyond keep their zeros.
void TransposeRows(const Rows& z, size_t n, float* HWY_RESTRICT zt, size_t ld) {
  const hn::FixedTag<float, 4> d4;
  using V4 = hn::Vec<decltype(d4)>;
  const hn::Repartition<double, decltype(d4)> d2;
  const size_t dim4 = z.dim / 4 * 4;
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    const float *r0 = z[i], *r1 = z[i + 1], *r2 = z[i + 2], *r3 = z[i + 3];
    for (size_t k = 0; k < dim4; k += 4) {
      const V4 a = hn::LoadU(d4, r0 + k), b = hn::LoadU(d4, r1 + k);
      const V4 c = hn::LoadU(d4, r2 + k), e = hn::LoadU(d4, r3 + k);
      const auto ab_low = hn::BitCast(d2, hn::InterleaveLower(d4, a, b));
      const auto ce_low = hn::BitCast(d2, hn::InterleaveLower(d4, c, e));
      const auto ab_high = hn::BitCast(d2, hn::InterleaveUpper(d4, a, b));
      const auto ce_high = hn::BitCast(d2, hn::InterleaveUpper(d4, c, e));
      float* out = zt + k * ld + i;
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_low, ce_low)), d4, out);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_low, ce_low)), d4, out + ld);
      hn::Store(hn::BitCast(d4, hn::InterleaveLower(d2, ab_high, ce_high)), d4, out + 2 * ld);
      hn::Store(hn::BitCast(d4, hn::InterleaveUpper(d2, ab_high, ce_high)), d4, out + 3 * ld);
    }
    for (size_t k = dim4; k < z.dim; ++k) {
      zt[k * ld + i] = r0[k];
      zt[k * ld + i + 1] = r1[k];
      zt[k * ld + i + 2] = r2[k];
      zt[k * ld + i + 3] = r3[k];
    }
  }
  for (; i < n; ++i) {
    const float* row = z[i];
    for (size_t k = 0; k < z.dim; ++k) zt[k * ld + i] = row[k];
  }
}

// gram[(i0 + r) * ld + col + lane] for kBlock rows and kVectors vectors of columns.
template <size_t kVectors>
HWY_INLINE void GramBlock(const float* HWY_RESTRICT zt, size_t ld, size_t dim, size_t i0, size_t col,
                          float* HWY_RESTRICT gram) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[kBlock][kVectors];
  for (size_t r = 0; r < kBlock; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t k = 0; k < dim; ++k) {
    const float* row = zt + k * ld;
    V columns[kVectors];
    for (size_t v = 0; v < kVectors; ++v) columns[v] = hn::Load(d, row + col + v * lanes);
    for (size_t r = 0; r < kBlock; ++r) {
      const V z = hn::Set(d, row[i0 + r]);
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(z, columns[v], sum[r][v]);
    }
  }
  for (size_t r = 0; r < kBlock; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, gram + (i0 + r) * ld + col + v * lanes);
  }
}

// The rows' parts right of the diagonal, one after the other. Whole vectors are stored, so each row spills
// into the place of the next, which then overwrites it, and the last into the slack.
HWY_INLINE void PackTriangle(const float* HWY_RESTRICT gram, size_t ld, size_t n, float* HWY_RESTRICT out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i + 1 < n; ++i) {
    const float* row = gram + i * ld + i + 1;
    const size_t length = n - 1 - i;
    for (size_t j = 0; j < length; j += lanes) hn::StoreU(hn::LoadU(d, row + j), d, out + j);
    out += length;
  }
}

// `ld`: at least n rounded up to whole blocks and whole vectors. `zt` [dim x ld] is zero in the columns
// behind n; `gram` has [ld x ld] floats and Interaction::kSlack more.
void ForwardT(const VectorSet& z, size_t batch, Matrix out, size_t ld, float* zt, float* gram) {
  const size_t lanes = hn::Lanes(D());
  const size_t n = z.size();
  for (size_t b = 0; b < batch; ++b) {
    TransposeRows(Rows(z, b), n, zt, ld);
    for (size_t i0 = 0; i0 + 1 < n; i0 += kBlock) {
      size_t col = (i0 + 1) / lanes * lanes;
      for (; col + lanes < n; col += 2 * lanes) GramBlock<2>(zt, ld, z.dim, i0, col, gram);
      if (col < n) GramBlock<1>(zt, ld, z.dim, i0, col, gram);
    }
    PackTriangle(gram, ld, n, out.data + b * out.ld);
  }
}

// Where row i's pairs (i, i + 1) .. start in the packed triangle, less i + 1, so that pair (i, j) is at
// Base(i) + j (modulo 2^64: row 0's is -1).
HWY_INLINE size_t Base(size_t i, size_t n) { return i * n - i * (i + 1) / 2 - i - 1; }

// dz rows [i0, i0 + kRows), kVectors vectors of their components, from the packed gradients g and the rows z
// [n x ld].
template <size_t kRows, size_t kVectors>
HWY_INLINE void GradientBlock(const float* HWY_RESTRICT g, const float* HWY_RESTRICT z, size_t ld, size_t n,
                              size_t i0, float* HWY_RESTRICT dz) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  // Above the block the coefficients of its rows lie side by side; each row starts one shorter than the one
  // before.
  size_t above = i0 - 1;
  for (size_t j = 0; j < i0; ++j) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V column = hn::Load(d, z + j * ld + v * lanes);
      for (size_t r = 0; r < kRows; ++r) sum[r][v] = hn::MulAdd(hn::Set(d, g[above + r]), column, sum[r][v]);
    }
    above += n - 2 - j;
  }
  size_t right[kRows];
  for (size_t r = 0; r < kRows; ++r) right[r] = Base(i0 + r, n);
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t other = r + 1; other < kRows; ++other) {
      const V coefficient = hn::Set(d, g[right[r] + i0 + other]);
      for (size_t v = 0; v < kVectors; ++v) {
        sum[r][v] = hn::MulAdd(coefficient, hn::Load(d, z + (i0 + other) * ld + v * lanes), sum[r][v]);
        sum[other][v] = hn::MulAdd(coefficient, hn::Load(d, z + (i0 + r) * ld + v * lanes), sum[other][v]);
      }
    }
  }
  for (size_t j = i0 + kRows; j < n; ++j) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V column = hn::Load(d, z + j * ld + v * lanes);
      for (size_t r = 0; r < kRows; ++r)
        sum[r][v] = hn::MulAdd(hn::Set(d, g[right[r] + j]), column, sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, dz + (i0 + r) * ld + v * lanes);
  }
}

template <size_t kVectors>
void GradientRows(const float* g, const float* z, size_t ld, size_t n, float* dz) {
  size_t i = 0;
  for (; i + kBlock <= n; i += kBlock) GradientBlock<kBlock, kVectors>(g, z, ld, n, i, dz);
  switch (n - i) {
    case 5:
      return GradientBlock<5, kVectors>(g, z, ld, n, i, dz);
    case 4:
      return GradientBlock<4, kVectors>(g, z, ld, n, i, dz);
    case 3:
      return GradientBlock<3, kVectors>(g, z, ld, n, i, dz);
    case 2:
      return GradientBlock<2, kVectors>(g, z, ld, n, i, dz);
    case 1:
      return GradientBlock<1, kVectors>(g, z, ld, n, i, dz);
    default:
      return;
  }
}

// out[k] = a[k] + (b ? b[k] : 0); the arrays hold exactly dim floats.
HWY_INLINE void AddRow(const float* a, const float* b, size_t dim, float* out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  size_t k = 0;
  for (; k + lanes <= dim; k += lanes) {
    V v = hn::LoadU(d, a + k);
    if (b != nullptr) v = hn::Add(v, hn::LoadU(d, b + k));
    hn::StoreU(v, d, out + k);
  }
  for (; k < dim; ++k) out[k] = a[k] + (b != nullptr ? b[k] : 0.0f);
}

// `rows` and `d_rows` are scratch of [n x ld] floats; ld is dim rounded up to whole vectors, and `rows` is
// zero there.
void BackwardT(const VectorSet& z, size_t batch, ConstMatrix d_out, const VectorSetGradients& dz, size_t ld,
               float* rows, float* d_rows) {
  const size_t lanes = hn::Lanes(D());
  const size_t n = z.size();
  for (size_t b = 0; b < batch; ++b) {
    const Rows source(z, b);
    for (size_t i = 0; i < n; ++i) AddRow(source[i], nullptr, z.dim, rows + i * ld);
    const float* g = d_out.data + b * d_out.ld;
    size_t k = 0;
    for (; k + lanes < z.dim; k += 2 * lanes) GradientRows<2>(g, rows + k, ld, n, d_rows + k);
    if (k < z.dim) GradientRows<1>(g, rows + k, ld, n, d_rows + k);

    size_t i = 0;
    if (source.first != nullptr) {
      float* first = dz.first.data + b * dz.first.ld;
      AddRow(d_rows, first, z.dim, first);
      i = 1;
    }
    const float* add = dz.rest_add.data != nullptr ? dz.rest_add.data + b * dz.rest_add.ld : nullptr;
    float* out = dz.rest + b * z.num_rest * z.dim;
    for (; i < n; ++i) {
      AddRow(d_rows + i * ld, add, z.dim, out);
      out += z.dim;
      if (add != nullptr) add += z.dim;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
namespace {
// Of floats: the widest vector of any target that is compiled.
constexpr size_t kWidest = 16;
}  // namespace

HWY_EXPORT(ForwardT);
HWY_EXPORT(BackwardT);

void Interaction::Forward(const VectorSet& z, size_t batch, Matrix out) {
  const size_t n = z.size();
  if (n < 2) return;
  // A block of rows may reach 5 past n, a pair of vectors one vector.
  const size_t ld = RoundUp(n + 5, kWidest);
  const size_t transposed = z.dim * ld;
  float* zt = Grow(scratch_, transposed + ld * ld + kSlack);
  std::fill(zt, zt + transposed, 0.0f);
  HWY_DYNAMIC_DISPATCH(ForwardT)(z, batch, out, ld, zt, zt + transposed);
}

void Interaction::Backward(const VectorSet& z, size_t batch, ConstMatrix d_out,
                           const VectorSetGradients& dz) {
  const size_t n = z.size();
  if (n == 0) return;
  const size_t ld = RoundUp(z.dim, kWidest);
  float* rows = Grow(scratch_, 2 * n * ld);
  std::fill(rows, rows + n * ld, 0.0f);
  HWY_DYNAMIC_DISPATCH(BackwardT)(z, batch, d_out, dz, ld, rows, rows + n * ld);
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
