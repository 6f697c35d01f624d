// SPDX-License-Identifier: Apache-2.0
// Reductions of integers. Operations that do not depend on the sign are computed on unsigned lanes, which
// wrap.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/integer_kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set; before the others

#include "collectives/reduce/vector_loop-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::collectives::internal {
namespace HWY_NAMESPACE {

// No instruction set multiplies bytes: the even and the odd ones are multiplied in 16-bit lanes.
struct ByteProduct : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      return hn::Set(d, static_cast<uint8_t>(hn::GetLane(so_far) * hn::GetLane(next)));
    } else {
      const hn::RepartitionToWide<D> u16;
      const auto a = hn::BitCast(u16, so_far), b = hn::BitCast(u16, next);
      const auto even = hn::And(hn::Mul(a, b), hn::Set(u16, 0xff));
      const auto odd = hn::ShiftLeft<8>(hn::Mul(hn::ShiftRight<8>(a), hn::ShiftRight<8>(b)));
      return hn::BitCast(d, hn::Or(even, odd));
    }
  }
};

struct BitAnd : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::And(so_far, next);
  }
};
struct BitOr : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::Or(so_far, next);
  }
};
struct BitXor : Operator {
  template <class D, class V>
  static HWY_INLINE V Combine(D d, V so_far, V next) {
    return hn::Xor(so_far, next);
  }
};

template <typename Unsigned, class ProductOp>
HWY_NOINLINE void SumOrProduct(const Reduction& r) {
  return r.op == ReduceOp::kSum ? Loop<Plain<Unsigned>, Sum>(r) : Loop<Plain<Unsigned>, ProductOp>(r);
}

template <typename T, typename Unsigned, class ProductOp = Product>
HWY_INLINE void ReduceInteger(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::kMin:
      return Loop<Plain<T>, Least>(r);
    case ReduceOp::kMax:
      return Loop<Plain<T>, Greatest>(r);
    default:
      return SumOrProduct<Unsigned, ProductOp>(r);
  }
}

void U8(const Reduction& r) { ReduceInteger<uint8_t, uint8_t, ByteProduct>(r); }
void I8(const Reduction& r) { ReduceInteger<int8_t, uint8_t, ByteProduct>(r); }
void I32(const Reduction& r) { ReduceInteger<int32_t, uint32_t>(r); }
void I64(const Reduction& r) { ReduceInteger<int64_t, uint64_t>(r); }

void Bits(const Reduction& r) {
  switch (r.op) {
    case ReduceOp::kBitAnd:
      return Loop<Plain<uint8_t>, BitAnd>(r);
    case ReduceOp::kBitOr:
      return Loop<Plain<uint8_t>, BitOr>(r);
    default:
      return Loop<Plain<uint8_t>, BitXor>(r);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::collectives::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::collectives::internal {

HWY_EXPORT(U8);
HWY_EXPORT(I8);
HWY_EXPORT(I32);
HWY_EXPORT(I64);
HWY_EXPORT(Bits);
void ReduceU8(const Reduction& r) { HWY_DYNAMIC_DISPATCH(U8)(r); }
void ReduceI8(const Reduction& r) { HWY_DYNAMIC_DISPATCH(I8)(r); }
void ReduceI32(const Reduction& r) { HWY_DYNAMIC_DISPATCH(I32)(r); }
void ReduceI64(const Reduction& r) { HWY_DYNAMIC_DISPATCH(I64)(r); }
void ReduceBits(const Reduction& r) { HWY_DYNAMIC_DISPATCH(Bits)(r); }

}  // namespace tandem::collectives::internal
#endif  // HWY_ONCE
