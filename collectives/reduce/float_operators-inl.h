// SPDX-License-Identifier: Apache-2.0
// Reduction operators for floating point only. Included once per instruction set, hence the guard.

#if defined(TANDEM_COLLECTIVES_REDUCE_FLOAT_OPERATORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_COLLECTIVES_REDUCE_FLOAT_OPERATORS_INL_H_
#undef TANDEM_COLLECTIVES_REDUCE_FLOAT_OPERATORS_INL_H_
#else
#define TANDEM_COLLECTIVES_REDUCE_FLOAT_OPERATORS_INL_H_
#endif

#include "collectives/reduce/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::collectives::internal {
namespace HWY_NAMESPACE {

struct PremulSum : Sum {
  template <class D, class V>
  static HWY_INLINE V Prepare(D d, const Reduction& r, size_t source, V v) {
    return hn::Mul(v, hn::Set(d, static_cast<hn::TFromD<D>>(r.factors[source])));
  }
};

struct Average : Sum {
  template <class D, class V>
  static HWY_INLINE V Finish(D d, const Reduction& r, V v) {
    using T = hn::TFromD<D>;
    const int over = r.average_over;
    // The quotient by a power of two and the product with the reciprocal are rounded alike.
    if ((over & (over - 1)) == 0) return hn::Mul(v, hn::Set(d, T{1} / static_cast<T>(over)));
    return hn::Div(v, hn::Set(d, static_cast<T>(over)));
  }
};

template <class Memory>
HWY_INLINE void ReduceFloating(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::kSum:
      return Loop<Memory, Sum>(r);
    case ReduceOp::kAvg:
      return Loop<Memory, Average>(r);
    case ReduceOp::kProduct:
      return Loop<Memory, Product>(r);
    case ReduceOp::kMin:
      return Loop<Memory, Least>(r);
    case ReduceOp::kMax:
      return Loop<Memory, Greatest>(r);
    case ReduceOp::kPremulSum:
      return Loop<Memory, PremulSum>(r);
    default:
      return;  // refused by SupportsReduction
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::collectives::internal
HWY_AFTER_NAMESPACE();

#endif
