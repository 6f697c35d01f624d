// SPDX-License-Identifier: Apache-2.0
// Vector versions of the conversions in base/numeric/float16.h, with identical bits. One vector has as many
// lanes as the corresponding float vector. Included once per instruction set (hwy/foreach_target.h), hence
// the include guard.

#if defined(TANDEM_BASE_NUMERIC_FLOAT16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_BASE_NUMERIC_FLOAT16_INL_H_
#undef TANDEM_BASE_NUMERIC_FLOAT16_INL_H_
#else
#define TANDEM_BASE_NUMERIC_FLOAT16_INL_H_
#endif

#include <cstdint>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Returns the low halves of 32-bit lanes.
template <class D, class V>
HWY_INLINE auto LowHalves(D d, V bits) {
  return hn::DemoteTo(hn::Rebind<uint16_t, D>(), hn::BitCast(hn::Rebind<int32_t, D>(), bits));
}

struct BFloat16Conversion {
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> ToFloat(D d, V bits) {
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(hn::Rebind<uint32_t, D>(), bits)));
  }
  template <class D>
  static HWY_INLINE auto FromFloat(D d, hn::Vec<D> v) {
    const hn::Rebind<uint32_t, D> u32;
    const auto bits = hn::BitCast(u32, v);
    const auto upper = hn::ShiftRight<16>(bits);
    const auto odd = hn::And(upper, hn::Set(u32, 1));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(u32, 0x7fff))));
    const auto is_nan = hn::RebindMask(u32, hn::Ne(v, v));
    return LowHalves(d, hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(u32, 0x40)), rounded));
  }
};

#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C)
// The instructions round to nearest even and make NaNs quiet.
struct Float16Conversion {
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> ToFloat(D d, V bits) {
    return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
  }
  template <class D>
  static HWY_INLINE auto FromFloat(D d, hn::Vec<D> v) {
    return hn::BitCast(hn::Rebind<uint16_t, D>(), hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), v));
  }
};
#else
// Implements base/numeric/float16.h without branches: computes all cases and selects one per lane.
struct Float16Conversion {
  template <class D, class V>
  static HWY_INLINE hn::Vec<D> ToFloat(D d, V half) {
    const hn::Rebind<uint32_t, D> u32;
    const hn::Rebind<int32_t, D> i32;
    const auto bits = hn::PromoteTo(u32, half);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(u32, 0x8000)));
    const auto magnitude = hn::And(bits, hn::Set(u32, 0x7fff));
    const auto shifted = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(shifted, hn::Set(u32, 0x38000000));
    const auto subnormal = hn::BitCast(
        u32, hn::Mul(hn::ConvertTo(d, hn::BitCast(i32, magnitude)), hn::Set(d, 1.0f / 16777216.0f)));
    const auto special = hn::Or(hn::And(shifted, hn::Set(u32, 0x7fe000)), hn::Set(u32, 0x7f800000));
    const auto quiet = hn::Or(special, hn::Set(u32, 0x400000));
    const auto at_least = [&](uint32_t limit) HWY_ATTR {
      return hn::RebindMask(u32, hn::Gt(hn::BitCast(i32, magnitude), hn::Set(i32, limit - 1)));
    };
    auto result = hn::IfThenElse(at_least(0x400), normal, subnormal);
    result = hn::IfThenElse(at_least(0x7c00), special, result);
    result = hn::IfThenElse(at_least(0x7c01), quiet, result);
    return hn::BitCast(d, hn::Or(result, sign));
  }
  template <class D>
  static HWY_INLINE auto FromFloat(D d, hn::Vec<D> v) {
    const hn::Rebind<uint32_t, D> u32;
    const hn::Rebind<int32_t, D> i32;
    const auto bits = hn::BitCast(u32, v);
    const auto sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(u32, 0x8000));
    const auto magnitude = hn::And(bits, hn::Set(u32, 0x7fffffff));
    const auto rebiased = hn::Sub(magnitude, hn::Set(u32, 0x38000000));
    const auto odd = hn::And(hn::ShiftRight<13>(rebiased), hn::Set(u32, 1));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(odd, hn::Set(u32, 0xfff))));
    const auto half = hn::Set(d, 0.5f);
    const auto subnormal =
        hn::Sub(hn::BitCast(u32, hn::Add(hn::BitCast(d, magnitude), half)), hn::BitCast(u32, half));
    const auto nan =
        hn::Or(hn::And(hn::ShiftRight<13>(magnitude), hn::Set(u32, 0x3ff)), hn::Set(u32, 0x7e00));
    const auto at_least = [&](uint32_t limit) HWY_ATTR {
      return hn::RebindMask(u32, hn::Gt(hn::BitCast(i32, magnitude), hn::Set(i32, limit - 1)));
    };
    auto result = hn::IfThenElse(at_least(0x38800000), normal, subnormal);
    result = hn::IfThenElse(at_least(0x477ff000), hn::Set(u32, 0x7c00), result);
    result = hn::IfThenElse(at_least(0x7f800001), nan, result);
    return LowHalves(d, hn::Or(result, sign));
  }
};
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tandem
HWY_AFTER_NAMESPACE();

#endif
