// SPDX-License-Identifier: Apache-2.0
// Conversion of single rows between their stored number format and floats. This file is included once per
// instruction set (hwy/foreach_target.h), hence the unusual guard.

#if defined(TANDEM_PS_STORAGE_ROW_FORMATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_PS_STORAGE_ROW_FORMATS_INL_H_
#undef TANDEM_PS_STORAGE_ROW_FORMATS_INL_H_
#else
#define TANDEM_PS_STORAGE_ROW_FORMATS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "base/numeric/dtype.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "ps/optimizers/vector_loop-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

// Converts IEEE binary16 patterns in 32-bit lanes to floats and back; base/numeric/float16.h explains how.
struct Float16Lanes {
  template <class D, class V>
  static HWY_INLINE auto ToFloat(D d, V bits) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
    const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffu));
    const auto normal = hn::Add(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x38000000u));
    const auto small = hn::BitCast(
        du, hn::Mul(hn::ConvertTo(d, hn::BitCast(di, magnitude)), hn::Set(d, 1.0f / 16777216.0f)));
    const auto infinity = hn::Or(hn::ShiftLeft<13>(magnitude), hn::Set(du, 0x7f800000u));
    const auto special = hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7c00u)),
                                        hn::Or(infinity, hn::Set(du, 0x400000u)), infinity);
    const auto smooth = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x400u)), small, normal);
    return hn::BitCast(
        d, hn::Or(sign, hn::IfThenElse(hn::Gt(magnitude, hn::Set(du, 0x7bffu)), special, smooth)));
  }
  // Rounds to nearest if `nearest`, else stochastically by `chance`, which has 16 random bits in each lane.
  template <class D, class V, class U>
  static HWY_INLINE auto FromFloat(D d, V value, U chance, bool nearest) {
    const hn::RebindToUnsigned<D> du;
    const hn::RebindToSigned<D> di;
    const auto f = hn::BitCast(du, value);
    const auto sign = hn::And(hn::ShiftRight<16>(f), hn::Set(du, 0x8000u));
    const auto all = hn::And(f, hn::Set(du, 0x7fffffffu));
    const auto nan = hn::Or(hn::Set(du, 0x7e00u), hn::And(hn::ShiftRight<13>(all), hn::Set(du, 0x3ffu)));
    const auto magnitude = hn::Min(all, hn::Set(du, 0x477fe000u));  // 65504
    const auto rebiased = hn::Sub(magnitude, hn::Set(du, 0x38000000u));
    const auto odd = hn::And(hn::ShiftRight<13>(rebiased), hn::Set(du, 1u));
    const auto more = nearest ? hn::Add(odd, hn::Set(du, 0xfffu)) : hn::ShiftRight<3>(chance);
    const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, more));
    // Below 2^-14 the numbers are multiples of 2^-24. Adding 0.5 leaves them, rounded to nearest, in the low
    // bits.
    const auto float_magnitude = hn::BitCast(d, magnitude);
    const auto half = hn::Set(d, 0.5f);
    auto small = normal;
    if (nearest) {
      small = hn::Sub(hn::BitCast(du, hn::Add(float_magnitude, half)), hn::BitCast(du, half));
    } else {
      // The minimum keeps lanes that are not this small from overflowing before they are discarded.
      const auto units = hn::Min(hn::Mul(float_magnitude, hn::Set(d, 16777216.0f)), hn::Set(d, 2048.0f));
      const auto up = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, chance)), hn::Set(d, 1.0f / 65536.0f));
      small = hn::BitCast(du, hn::ConvertTo(di, hn::Add(units, up)));
    }
    const auto number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), small, normal);
    return hn::Or(sign, hn::IfThenElse(hn::Gt(all, hn::Set(du, 0x7f800000u)), nan, number));
  }
};

// Converts bfloat16 patterns, as Float16Lanes.
struct BFloat16Lanes {
  template <class D, class V>
  static HWY_INLINE auto ToFloat(D d, V bits) {
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }
  template <class D, class V, class U>
  static HWY_INLINE auto FromFloat(D d, V value, U chance, bool nearest) {
    const hn::RebindToUnsigned<D> du;
    const auto f = hn::BitCast(du, value);
    const auto sign = hn::And(hn::ShiftRight<16>(f), hn::Set(du, 0x8000u));
    const auto all = hn::And(f, hn::Set(du, 0x7fffffffu));
    const auto magnitude = hn::Min(all, hn::Set(du, 0x7f7f0000u));  // the largest finite
    const auto odd = hn::And(hn::ShiftRight<16>(magnitude), hn::Set(du, 1u));
    const auto more = nearest ? hn::Add(odd, hn::Set(du, 0x7fffu)) : chance;
    const auto number = hn::ShiftRight<16>(hn::Add(magnitude, more));
    const auto nan = hn::Or(hn::ShiftRight<16>(all), hn::Set(du, 0x40u));
    return hn::Or(sign, hn::IfThenElse(hn::Gt(all, hn::Set(du, 0x7f800000u)), nan, number));
  }
};

template <class Format>
HWY_INLINE void Load16(const char* row, size_t dim, float* out) {
  const auto* const from = reinterpret_cast<const uint16_t*>(row);
  ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
    const hn::Rebind<uint16_t, decltype(d)> d16;
    const hn::RebindToUnsigned<decltype(d)> du;
    hn::StoreU(Format::ToFloat(d, hn::PromoteTo(du, hn::LoadU(d16, from + i))), d, out + i);
  });
}

// Reads a row of any length that is stored as `dtype`.
HWY_INLINE void LoadRow(DType dtype, const char* row, size_t dim, float* out) {
  if (dtype == DType::kF16) {
    Load16<Float16Lanes>(row, dim, out);
  } else if (dtype == DType::kBF16) {
    Load16<BFloat16Lanes>(row, dim, out);
  } else {
    const auto* const from = reinterpret_cast<const float*>(row);
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::LoadU(d, from + i), d, out + i); });
  }
}

// Copies a row of kDim floats. The length is known at compile time, which halves the time for short rows.
// With kAround it uses streaming stores, which bypass the caches.
template <size_t kDim, bool kAround = false>
HWY_INLINE void LoadFloats(const char* row, float* out) {
  const hn::CappedTag<float, 16> d;
  const auto* const from = reinterpret_cast<const float*>(row);
  for (size_t i = 0; i < kDim; i += hn::Lanes(d)) {
    if constexpr (kAround) {
      hn::Stream(hn::LoadU(d, from + i), d, out + i);
    } else {
      hn::StoreU(hn::LoadU(d, from + i), d, out + i);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#endif
