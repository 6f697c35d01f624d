// The loop that all optimizer kernels share. Included once per instruction set (hwy/foreach_target.h), hence
// the guard.

#if defined(TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_
#undef TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_
#else
#define TANDEM_PS_OPTIMIZERS_VECTOR_LOOP_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls body(d, i) so that the vectors [i, i + Lanes(d)) cover [0, dim) exactly: whole vectors, then narrower
// ones, then single elements. Never touches memory outside the row.
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

// gradient[i..] + l2 * w, where w = weights[i..].
template <class D, class V>
HWY_INLINE V LoadGradient(D d, const float* gradient, size_t i, V w, float l2) {
  const V g = hn::LoadU(d, gradient + i);
  return l2 == 0.0f ? g : hn::Add(g, hn::Mul(hn::Set(d, l2), w));
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#endif
