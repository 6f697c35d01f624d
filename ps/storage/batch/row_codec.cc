#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/storage/batch/row_codec.cc"
#include <algorithm>
#include <cstring>

#include "base/random.h"
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/optimizers/vector_loop-inl.h"
#include "ps/storage/batch/prefetch.h"
#include "ps/storage/batch/row_codec.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

// Sixteen-bit patterns in 32-bit lanes to floats and back; see base/numeric/float16.h for how.
struct Half {
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
  // `chance`: 16 random bits a lane, or the half that rounds to nearest when `nearest`.
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
      // (The minimum is for lanes that are not this small: they must not overflow on their way to be
      // discarded.)
      const auto units = hn::Min(hn::Mul(float_magnitude, hn::Set(d, 16777216.0f)), hn::Set(d, 2048.0f));
      const auto up = hn::Mul(hn::ConvertTo(d, hn::BitCast(di, chance)), hn::Set(d, 1.0f / 65536.0f));
      small = hn::BitCast(du, hn::ConvertTo(di, hn::Add(units, up)));
    }
    const auto number = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 0x38800000u)), small, normal);
    return hn::Or(sign, hn::IfThenElse(hn::Gt(all, hn::Set(du, 0x7f800000u)), nan, number));
  }
};

struct Brain {
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

// Rows that lie far apart come from memory while earlier ones are copied.
constexpr size_t kRowsAhead = 32;

// Calls copy(row, out) for all rows but nullptr.
template <class Copy>
HWY_INLINE void ForEachRow(absl::Span<const char* const> rows, size_t row_bytes, size_t dim, float* out,
                           const Copy& copy) {
  const size_t count = rows.size();
  const auto prefetch = [&](size_t r) HWY_ATTR {
    if (rows[r] != nullptr) Prefetch(rows[r], row_bytes);
  };
  for (size_t r = 0; r < std::min(kRowsAhead, count); ++r) prefetch(r);
  for (size_t r = 0; r < count; ++r, out += dim) {
    if (r + kRowsAhead < count) prefetch(r + kRowsAhead);
    if (rows[r] != nullptr) copy(rows[r], out);
  }
}

// The usual lengths, with no loop over what is known: half the time of short rows.
template <size_t kDim, bool kAround>
void LoadFloats(absl::Span<const char* const> rows, float* out) {
  ForEachRow(rows, kDim * sizeof(float), kDim, out, [](const char* row, float* to) HWY_ATTR {
    const hn::CappedTag<float, 16> d;
    const auto* const from = reinterpret_cast<const float*>(row);
    for (size_t i = 0; i < kDim; i += hn::Lanes(d)) {
      if constexpr (kAround) {
        hn::Stream(hn::LoadU(d, from + i), d, to + i);
      } else {
        hn::StoreU(hn::LoadU(d, from + i), d, to + i);
      }
    }
  });
}

// Whether there was such a function.
template <bool kAround>
bool LoadUsual(absl::Span<const char* const> rows, size_t dim, float* out) {
  if (dim == 16) return LoadFloats<16, kAround>(rows, out), true;
  if (dim == 32) return LoadFloats<32, kAround>(rows, out), true;
  if (dim == 64) return LoadFloats<64, kAround>(rows, out), true;
  if (dim == 128) return LoadFloats<128, kAround>(rows, out), true;
  return false;
}

void LoadRowsAroundOf(absl::Span<const char* const> rows, size_t dim, float* out) {
  LoadUsual<true>(rows, dim, out);
  hwy::FlushStream();
}

void LoadRowsOf(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out) {
  if (dtype == DType::kF32 && LoadUsual<false>(rows, dim, out)) return;
  ForEachRow(rows, dim * SizeOf(dtype), dim, out, [&](const char* row, float* to) HWY_ATTR {
    if (dtype == DType::kF16) {
      Load16<Half>(row, dim, to);
    } else if (dtype == DType::kBF16) {
      Load16<Brain>(row, dim, to);
    } else {
      const auto* const from = reinterpret_cast<const float*>(row);
      ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::LoadU(d, from + i), d, to + i); });
    }
  });
}

template <class Format>
HWY_INLINE void Store16(char* row, size_t dim, const float* values, const uint64_t* key) {
  constexpr size_t kBlock = 64;
  uint16_t chances[kBlock] = {};
  auto* const to = reinterpret_cast<uint16_t*>(row);
  for (size_t begin = 0; begin < dim; begin += kBlock) {
    const size_t count = std::min(kBlock, dim - begin);
    for (size_t i = 0; key != nullptr && i < count; i += 4) {
      const uint64_t random = Mix64(*key + 0xd1342543de82ef95ull * (begin + i));
      for (size_t k = 0; k < 4; ++k) chances[i + k] = static_cast<uint16_t>(random >> (16 * k));
    }
    ForEachVector(count, [&](auto d, size_t i) HWY_ATTR {
      const hn::Rebind<uint16_t, decltype(d)> d16;
      const hn::RebindToUnsigned<decltype(d)> du;
      const hn::RebindToSigned<decltype(d)> di;
      const auto chance = hn::PromoteTo(du, hn::LoadU(d16, chances + i));
      const auto bits = Format::FromFloat(d, hn::LoadU(d, values + begin + i), chance, key == nullptr);
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, bits)), d16, to + begin + i);
    });
  }
}

void StoreRowsOf(DType dtype, absl::Span<char* const> rows, size_t dim, const float* values,
                 const uint64_t* keys) {
  for (size_t r = 0; r < rows.size(); ++r, values += dim) {
    const uint64_t* const key = keys == nullptr ? nullptr : keys + r;
    if (dtype == DType::kF16) {
      Store16<Half>(rows[r], dim, values, key);
    } else if (dtype == DType::kBF16) {
      Store16<Brain>(rows[r], dim, values, key);
    } else {
      auto* const to = reinterpret_cast<float*>(rows[r]);
      ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR { hn::StoreU(hn::LoadU(d, values + i), d, to + i); });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::ps {

void CopyRows(absl::Span<const char* const> rows, size_t bytes, char* out) {
  for (size_t r = 0; r < rows.size(); ++r, out += bytes) {
    if (rows[r] != nullptr) std::memcpy(out, rows[r], bytes);
  }
}

HWY_EXPORT(LoadRowsOf);
HWY_EXPORT(LoadRowsAroundOf);
HWY_EXPORT(StoreRowsOf);

void LoadRows(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out) {
  HWY_DYNAMIC_DISPATCH(LoadRowsOf)(dtype, rows, dim, out);
}
void LoadRowsAround(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out) {
  constexpr size_t kLine = 64;
  const bool whole_lines = reinterpret_cast<uintptr_t>(out) % kLine == 0;
  const bool usual = dim == 16 || dim == 32 || dim == 64 || dim == 128;
  if (dtype != DType::kF32 || !whole_lines || !usual) return LoadRows(dtype, rows, dim, out);
  HWY_DYNAMIC_DISPATCH(LoadRowsAroundOf)(rows, dim, out);
}
void StoreRows(DType dtype, absl::Span<char* const> rows, size_t dim, const float* values,
               const uint64_t* rounding_keys) {
  HWY_DYNAMIC_DISPATCH(StoreRowsOf)(dtype, rows, dim, values, rounding_keys);
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
