// SPDX-License-Identifier: Apache-2.0
#include "worker/models/interaction.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/models/interaction.cc"
#include "base/round_up.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::worker {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Rows computed together. With two vectors each they must leave a few of AVX2's 16 registers free. For DLRM's
// usual 27 vectors, blocks of 5 waste the least of the triangle; in the backward pass each row of a block
// also needs an address register.
constexpr size_t kGramRows = 5;
constexpr size_t kGradientRows = 4;

// Calls work.Block<kRows>(i0) for whole blocks of rows, then once for the remaining rows.
template <size_t kRows, class Work>
HWY_INLINE void LastBlock(size_t rows, size_t i0, const Work& work) {
  if constexpr (kRows > 0) {
    if (rows - i0 == kRows) return work.template Block<kRows>(i0);
    LastBlock<kRows - 1>(rows, i0, work);
  }
}
template <size_t kRows, class Work>
HWY_INLINE void ForBlocks(size_t rows, const Work& work) {
  size_t i0 = 0;
  for (; i0 + kRows <= rows; i0 += kRows) work.template Block<kRows>(i0);
  LastBlock<kRows - 1>(rows, i0, work);
}

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

// zt[k * ld + i] = z_i[k], in 4x4 blocks.
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

// gram[(i0 + r) * ld + lane] = z_{i0+r} . z_{col+lane}, for kRows rows and kVectors vectors of columns.
template <size_t kRows, size_t kVectors>
HWY_INLINE void GramBlock(const float* HWY_RESTRICT zt, size_t zt_ld, size_t dim, size_t i0, size_t col,
                          float* HWY_RESTRICT gram, size_t ld) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  for (size_t k = 0; k < dim; ++k) {
    const float* row = zt + k * zt_ld;
    V columns[kVectors];
    for (size_t v = 0; v < kVectors; ++v) columns[v] = hn::LoadU(d, row + col + v * lanes);
    for (size_t r = 0; r < kRows; ++r) {
      const V z = hn::Set(d, row[i0 + r]);
      for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(z, columns[v], sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::Store(sum[r][v], d, gram + (i0 + r) * ld + v * lanes);
  }
}

// Rows [i0, i0 + kRows) against all later columns, from i0 + 1 on.
template <size_t kRows>
HWY_INLINE void GramRows(const float* zt, size_t zt_ld, size_t dim, size_t n, size_t i0, float* gram,
                         size_t ld) {
  const size_t lanes = hn::Lanes(D());
  size_t col = i0 + 1;
  for (; col + lanes < n; col += 2 * lanes, gram += 2 * lanes) {
    GramBlock<kRows, 2>(zt, zt_ld, dim, i0, col, gram, ld);
  }
  if (col < n) GramBlock<kRows, 1>(zt, zt_ld, dim, i0, col, gram, ld);
}

// Row i of `gram` then begins with column i / kGramRows * kGramRows + 1.
struct GramTriangle {
  template <size_t kRows>
  HWY_INLINE void Block(size_t i0) const {
    GramRows<kRows>(zt, zt_ld, dim, n, i0, gram, ld);
  }
  const float* zt;
  size_t zt_ld, dim, n;
  float* gram;
  size_t ld;
};

// Packs the rows' parts right of the diagonal, one after the other. Whole vectors are stored, so each row
// spills into the place of the next, which then overwrites it; the last row spills into the slack.
HWY_INLINE void PackTriangle(const float* HWY_RESTRICT gram, size_t ld, size_t n, float* HWY_RESTRICT out) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  for (size_t i = 0; i + 1 < n; ++i) {
    const float* row = gram + i * ld + i % kGramRows;
    const size_t length = n - 1 - i;
    for (size_t j = 0; j < length; j += lanes) hn::StoreU(hn::LoadU(d, row + j), d, out + j);
    out += length;
  }
}

// Scratch: `zt` holds two buffers of [dim x zt_ld] floats and `gram` two of [n x ld], each pair followed by
// kSlack floats. Two buffers let the steps of three examples alternate: a step that reads data which the step
// before has just stored at other vector boundaries would wait for these stores to drain.
void ForwardT(const VectorSet& z, size_t batch, Matrix out, float* zt, size_t zt_ld, float* gram, size_t ld) {
  const size_t n = z.size();
  const auto zt_of = [&](size_t b) { return zt + b % 2 * z.dim * zt_ld; };
  const auto gram_of = [&](size_t b) { return gram + b % 2 * n * ld; };
  for (size_t b = 0; b < batch + 2; ++b) {
    if (b < batch) TransposeRows(Rows(z, b), n, zt_of(b), zt_ld);
    if (b >= 2) PackTriangle(gram_of(b), ld, n, out.data + (b - 2) * out.ld);
    if (b >= 1 && b <= batch) {
      // The last row has no later columns.
      ForBlocks<kGramRows>(n - 1, GramTriangle{zt_of(b - 1), zt_ld, z.dim, n, gram_of(b - 1), ld});
    }
  }
}

// Returns the position of row i's first pair (i, i + 1) in the packed triangle, less i + 1: pair (i, j) is at
// Base(i) + j (modulo 2^64: row 0's base is -1).
HWY_INLINE size_t Base(size_t i, size_t n) { return i * n - i * (i + 1) / 2 - i - 1; }

// Computes rows [i0, i0 + kRows) of dz from the packed gradients g: kVectors vectors of components, starting
// at `at`.
template <size_t kRows, size_t kVectors>
HWY_INLINE void GradientBlock(const float* HWY_RESTRICT g, const float* const* z, size_t n, size_t i0,
                              size_t at, float* const* dz) {
  const D d;
  const size_t lanes = hn::Lanes(d);
  V sum[kRows][kVectors];
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  // Above the block the coefficients of its rows are adjacent; each row of the triangle is one element
  // shorter than the one before.
  size_t above = i0 - 1;
  for (size_t j = 0; j < i0; ++j) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V column = hn::LoadU(d, z[j] + at + v * lanes);
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
        sum[r][v] = hn::MulAdd(coefficient, hn::LoadU(d, z[i0 + other] + at + v * lanes), sum[r][v]);
        sum[other][v] = hn::MulAdd(coefficient, hn::LoadU(d, z[i0 + r] + at + v * lanes), sum[other][v]);
      }
    }
  }
  for (size_t j = i0 + kRows; j < n; ++j) {
    for (size_t v = 0; v < kVectors; ++v) {
      const V column = hn::LoadU(d, z[j] + at + v * lanes);
      for (size_t r = 0; r < kRows; ++r)
        sum[r][v] = hn::MulAdd(hn::Set(d, g[right[r] + j]), column, sum[r][v]);
    }
  }
  for (size_t r = 0; r < kRows; ++r) {
    for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sum[r][v], d, dz[i0 + r] + at + v * lanes);
  }
}

template <size_t kVectors>
struct GradientRows {
  template <size_t kRows>
  HWY_INLINE void Block(size_t i0) const {
    GradientBlock<kRows, kVectors>(g, z, n, i0, at, dz);
  }
  const float* g;
  const float* const* z;
  size_t n, at;
  float* const* dz;
};

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

// Rows are read and written in place if they consist of whole vectors and nothing is to be added to them. For
// the others `scratch` has [2 x n x ld] floats, where ld is dim rounded up to whole vectors. `z_rows` and
// `dz_rows` have n entries.
void BackwardT(const VectorSet& z, size_t batch, ConstMatrix d_out, const VectorSetGradients& dz,
               float* scratch, size_t ld, const float** z_rows, float** dz_rows) {
  const size_t lanes = hn::Lanes(D());
  const size_t n = z.size();
  const bool whole = z.dim % lanes == 0;
  const bool adds = dz.rest_add.data != nullptr;
  const size_t first = z.first.data != nullptr ? 1 : 0;
  for (size_t b = 0; b < batch; ++b) {
    const Rows source(z, b);
    float* rest = dz.rest + b * z.num_rest * z.dim;
    for (size_t i = 0; i < n; ++i) {
      z_rows[i] = source[i];
      if (!whole) {
        AddRow(source[i], nullptr, z.dim, scratch + i * ld);
        z_rows[i] = scratch + i * ld;
      }
      const bool direct = whole && !adds && i >= first;
      dz_rows[i] = direct ? rest + (i - first) * z.dim : scratch + (n + i) * ld;
    }
    const float* g = d_out.data + b * d_out.ld;
    size_t k = 0;
    for (; k + lanes < z.dim; k += 2 * lanes) {
      ForBlocks<kGradientRows>(n, GradientRows<2>{g, z_rows, n, k, dz_rows});
    }
    if (k < z.dim) ForBlocks<kGradientRows>(n, GradientRows<1>{g, z_rows, n, k, dz_rows});

    if (first != 0) {
      float* out = dz.first.data + b * dz.first.ld;
      AddRow(dz_rows[0], out, z.dim, out);
    }
    if (whole && !adds) continue;
    for (size_t i = first; i < n; ++i) {
      const size_t at = (i - first) * z.dim;
      AddRow(dz_rows[i], adds ? dz.rest_add.data + b * dz.rest_add.ld + at : nullptr, z.dim, rest + at);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::worker
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::worker {
namespace {
// The widest vector, in floats, of any target that is compiled.
constexpr size_t kWidest = 16;
}  // namespace

HWY_EXPORT(ForwardT);
HWY_EXPORT(BackwardT);

void Interaction::Forward(const VectorSet& z, size_t batch, Matrix out) {
  const size_t n = z.size();
  if (n < 2) return;
  const size_t ld = RoundUp(n, kWidest);
  const size_t transposed = RoundUp(2 * z.dim * ld + kSlack, kWidest);
  // Rows of the Gram matrix consist of pairs of vectors of any width.
  const size_t gram_ld = RoundUp(n, 2 * kWidest);
  float* zt = Grow(scratch_, transposed + 2 * n * gram_ld + kSlack);
  HWY_DYNAMIC_DISPATCH(ForwardT)(z, batch, out, zt, ld, zt + transposed, gram_ld);
}

void Interaction::Backward(const VectorSet& z, size_t batch, ConstMatrix d_out,
                           const VectorSetGradients& dz) {
  const size_t n = z.size();
  if (n == 0) return;
  const size_t ld = RoundUp(z.dim, 2 * kWidest);
  float* scratch = Grow(scratch_, 2 * n * ld);
  z_rows_.resize(n);
  dz_rows_.resize(n);
  HWY_DYNAMIC_DISPATCH(BackwardT)(z, batch, d_out, dz, scratch, ld, z_rows_.data(), dz_rows_.data());
}

}  // namespace tandem::worker
#endif  // HWY_ONCE
