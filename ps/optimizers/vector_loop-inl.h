// SPDX-License-Identifier: Apache-2.0
// The loop that all optimizer kernels share. hwy/foreach_target.h includes this file once per instruction
// set, so its include guard is toggled instead of set.

#if defined(TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_
#undef TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_
#else
#define TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_
#endif

#include <algorithm>
#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls body(d, i) with vectors [i, i + Lanes(d)) that cover [0, dim) exactly: first whole vectors, then
// vectors of up to 4 lanes, then single elements. No memory outside the row is accessed.
template <class Body>
HWY_INLINE void ForEachVector(size_t dim, const Body& body) {
  size_t i = 0;
  const hn::ScalableTag<float> whole;
  for (; i + hn::Lanes(whole) <= dim; i += hn::Lanes(whole)) body(whole, i);
  const hn::CappedTag<float, 4> narrow;
  for (; i + hn::Lanes(narrow) <= dim; i += hn::Lanes(narrow)) body(narrow, i);
  const hn::CappedTag<float, 1> single;
  for (; i < dim; ++i) body(single, i);
}

// Returns gradient[i..] + l2 * w, where w = weights[i..].
template <class D, class V>
HWY_INLINE V LoadGradient(D d, const float* gradient, size_t i, V w, float l2) {
  const V g = hn::LoadU(d, gradient + i);
  return l2 == 0.0f ? g : hn::Add(g, hn::Mul(hn::Set(d, l2), w));
}

// Returns the sum of g(i)^2 over the row. It is the same on every instruction set: sixteen partial sums,
// independent of the width of vectors, are added in a fixed order. Blocks of 1024 elements are added as
// doubles, so that long rows lose no precision.
template <class Gradient>
HWY_INLINE double SumOfSquares(size_t dim, const Gradient& g) {
  constexpr size_t kSums = 16;
  constexpr size_t kBlock = 1024;
  double total = 0;
  for (size_t begin = 0; begin < dim; begin += kBlock) {
    const size_t end = std::min(dim, begin + kBlock);
    float sums[kSums] = {};
    size_t i = begin;
    for (; i + kSums <= end; i += kSums) {
      for (size_t k = 0; k < kSums; ++k) sums[k] += g(i + k) * g(i + k);
    }
    for (size_t k = 0; i < end; ++i, ++k) sums[k] += g(i) * g(i);
    for (size_t half = kSums / 2; half > 0; half /= 2) {
      for (size_t k = 0; k < half; ++k) sums[k] += sums[k + half];
    }
    total += sums[0];
  }
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#endif
