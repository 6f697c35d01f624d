// SPDX-License-Identifier: Apache-2.0
// Reductions of f16 and bf16, computed in f32. The conversions are those of base/numeric/float16.h, bit for
// bit.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/half_kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set; before the others

#include "base/numeric/float16-inl.h"
#include "collectives/reduce/float_operators-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::collectives::internal {
namespace HWY_NAMESPACE {

// Two-byte elements as unsigned numbers, in as many lanes as there are floats.
template <class Conversion>
struct Halves {
  using Stored = uint16_t;
  using Computed = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> Load(D d, const uint16_t* from) {
    return Conversion::ToFloat(d, hn::LoadU(hn::Rebind<uint16_t, D>(), from));
  }
  template <class D>
  static HWY_INLINE void Store(D d, hn::Vec<D> v, uint16_t* to) {
    hn::StoreU(Conversion::FromFloat(d, v), hn::Rebind<uint16_t, D>(), to);
  }
  template <class D>
  static HWY_INLINE void Stream(D d, hn::Vec<D> v, uint16_t* to) {
    const hn::Rebind<uint16_t, D> u16;
    // There is no streaming store for half a 128-bit vector.
    if constexpr (hn::MaxLanes(u16) < 8) {
      hn::StoreU(Conversion::FromFloat(d, v), u16, to);
    } else {
      hn::Stream(Conversion::FromFloat(d, v), u16, to);
    }
  }
};

void F16(const Reduction& r) { ReduceFloating<Halves<tandem::HWY_NAMESPACE::Float16Conversion>>(r); }
void BF16(const Reduction& r) { ReduceFloating<Halves<tandem::HWY_NAMESPACE::BFloat16Conversion>>(r); }

// Runs step(d, i) for vectors of elements [i, i + Lanes(d)) which cover [0, n).
template <class Step>
HWY_INLINE void ForEachVector(size_t n, Step step) {
  const hn::ScalableTag<float> whole;
  const hn::CappedTag<float, 1> single;
  size_t i = 0;
  for (; i + hn::Lanes(whole) <= n; i += hn::Lanes(whole)) step(whole, i);
  for (; i < n; ++i) step(single, i);
}

template <class Memory>
HWY_INLINE void Widen(const void* in, size_t n, float* out) {
  const uint16_t* const from = static_cast<const uint16_t*>(in);
  ForEachVector(
      n, [&](auto d, size_t i) HWY_ATTR { Plain<float>::Store(d, Memory::Load(d, from + i), out + i); });
}

template <class Memory>
HWY_INLINE void Narrow(const float* in, size_t n, void* out) {
  uint16_t* const to = static_cast<uint16_t*>(out);
  ForEachVector(n,
                [&](auto d, size_t i) HWY_ATTR { Memory::Store(d, Plain<float>::Load(d, in + i), to + i); });
}

using F16Memory = Halves<tandem::HWY_NAMESPACE::Float16Conversion>;
using BF16Memory = Halves<tandem::HWY_NAMESPACE::BFloat16Conversion>;
HWY_NOINLINE void F16ToF32(const void* in, size_t n, float* out) { Widen<F16Memory>(in, n, out); }
HWY_NOINLINE void BF16ToF32(const void* in, size_t n, float* out) { Widen<BF16Memory>(in, n, out); }
HWY_NOINLINE void F32ToF16(const float* in, size_t n, void* out) { Narrow<F16Memory>(in, n, out); }
HWY_NOINLINE void F32ToBF16(const float* in, size_t n, void* out) { Narrow<BF16Memory>(in, n, out); }

}  // namespace HWY_NAMESPACE
}  // namespace tandem::collectives::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::collectives::internal {

HWY_EXPORT(F16);
HWY_EXPORT(BF16);
void ReduceF16(const Reduction& r) { HWY_DYNAMIC_DISPATCH(F16)(r); }
void ReduceBF16(const Reduction& r) { HWY_DYNAMIC_DISPATCH(BF16)(r); }

HWY_EXPORT(F16ToF32);
HWY_EXPORT(BF16ToF32);
HWY_EXPORT(F32ToF16);
HWY_EXPORT(F32ToBF16);
void WidenF16(const void* in, size_t n, float* out) { HWY_DYNAMIC_DISPATCH(F16ToF32)(in, n, out); }
void WidenBF16(const void* in, size_t n, float* out) { HWY_DYNAMIC_DISPATCH(BF16ToF32)(in, n, out); }
void NarrowF16(const float* in, size_t n, void* out) { HWY_DYNAMIC_DISPATCH(F32ToF16)(in, n, out); }
void NarrowBF16(const float* in, size_t n, void* out) { HWY_DYNAMIC_DISPATCH(F32ToBF16)(in, n, out); }

}  // namespace tandem::collectives::internal
#endif  // HWY_ONCE
