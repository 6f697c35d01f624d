// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/wire/value_codec.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set; before the others

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/copy_bytes.h"
#include "base/numeric/float16-inl.h"
#include "hwy/highway.h"
#include "ps/optimizers/vector_loop-inl.h"
#include "ps/wire/value_codec.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

using tandem::HWY_NAMESPACE::BFloat16Conversion;
using tandem::HWY_NAMESPACE::Float16Conversion;

constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kMagnitude = 0x7fffffffu;

template <class D, class V>
HWY_INLINE auto MagnitudeBits(D d, V value) {
  const hn::RebindToUnsigned<D> du;
  return hn::And(hn::BitCast(du, value), hn::Set(du, kMagnitude));
}

// Limits finite numbers to the magnitude whose bits are `largest`. NaN and Inf are unchanged.
template <class D, class V>
HWY_INLINE auto Saturate(D d, V value, uint32_t largest) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto magnitude = MagnitudeBits(d, value);
  const auto cut =
      hn::Or(hn::Min(magnitude, hn::Set(du, largest)), hn::AndNot(hn::Set(du, kMagnitude), bits));
  return hn::BitCast(d, hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, kInfinity)), cut, bits));
}

template <class Conversion, uint32_t kLargest>
struct Halves {
  static constexpr size_t kBytes = 2;
  static HWY_INLINE void Encode(const float* from, size_t n, char* to) {
    auto* const out = reinterpret_cast<uint16_t*>(to);
    ForEachVector(n, [&](auto d, size_t i) HWY_ATTR {
      const auto value = Saturate(d, hn::LoadU(d, from + i), kLargest);
      hn::StoreU(Conversion::FromFloat(d, value), hn::Rebind<uint16_t, decltype(d)>(), out + i);
    });
  }
  static HWY_INLINE void Decode(const char* from, size_t n, float* to) {
    const auto* const in = reinterpret_cast<const uint16_t*>(from);
    ForEachVector(n, [&](auto d, size_t i) HWY_ATTR {
      hn::StoreU(Conversion::ToFloat(d, hn::LoadU(hn::Rebind<uint16_t, decltype(d)>(), in + i)), d, to + i);
    });
  }
};
using F16 = Halves<Float16Conversion, 0x477fe000u>;    // 65504
using BF16 = Halves<BFloat16Conversion, 0x7f7f0000u>;  // (2 - 2^-7) 2^127

struct F32 {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE void Encode(const float* from, size_t n, char* to) {
    std::memcpy(to, from, n * sizeof(float));
  }
  static HWY_INLINE void Decode(const char* from, size_t n, float* to) {
    std::memcpy(to, from, n * sizeof(float));
  }
};

// Returns the bits of the largest magnitude. Compared as integers, bits of magnitudes are in the order of the
// floats, with NaN last.
HWY_INLINE uint32_t LargestBits(const float* values, size_t n) {
  const hn::ScalableTag<float> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  uint32_t largest = 0;
  size_t i = 0;
  if (n >= lanes) {
    auto a = hn::Zero(du), b = hn::Zero(du);
    for (; i + 2 * lanes <= n; i += 2 * lanes) {
      a = hn::Max(a, MagnitudeBits(d, hn::LoadU(d, values + i)));
      b = hn::Max(b, MagnitudeBits(d, hn::LoadU(d, values + i + lanes)));
    }
    for (; i + lanes <= n; i += lanes) a = hn::Max(a, MagnitudeBits(d, hn::LoadU(d, values + i)));
    largest = hn::GetLane(hn::MaxOfLanes(du, hn::Max(a, b)));
  }
  for (; i < n; ++i) {
    uint32_t bits;
    std::memcpy(&bits, values + i, sizeof(bits));
    largest = std::max(largest, bits & kMagnitude);
  }
  return largest;
}

struct Int8 {
  static HWY_INLINE void Encode(const float* from, size_t dim, char* to) {
    const uint32_t largest = LargestBits(from, dim);
    float scale = 0, inverse = 0;
    if (largest >= kInfinity) {
      scale = std::numeric_limits<float>::quiet_NaN();
    } else if (largest >= 0x04000000u) {  // 2^-119
      float magnitude;
      const uint32_t bits = std::min(largest, 0x7f000000u);  // 2^127
      std::memcpy(&magnitude, &bits, sizeof(bits));
      scale = magnitude / 127.0f;
      inverse = 127.0f / magnitude;
    }
    std::memcpy(to, &scale, sizeof(scale));
    auto* const codes = reinterpret_cast<int8_t*>(to + sizeof(scale));
    if (inverse == 0) {
      std::memset(codes, 0, dim);
      return;
    }
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const auto scaled = hn::Mul(hn::LoadU(d, from + i), hn::Set(d, inverse));
      const auto cut = hn::Min(hn::Max(scaled, hn::Set(d, -127.0f)), hn::Set(d, 127.0f));
      const hn::Rebind<int8_t, decltype(d)> d8;
      hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(cut)), d8, codes + i);
    });
  }
  static HWY_INLINE void Decode(const char* from, size_t dim, float* to) {
    float scale;
    std::memcpy(&scale, from, sizeof(scale));
    const auto* const codes = reinterpret_cast<const int8_t*>(from + sizeof(scale));
    ForEachVector(dim, [&](auto d, size_t i) HWY_ATTR {
      const hn::Rebind<int8_t, decltype(d)> d8;
      const hn::Rebind<int32_t, decltype(d)> d32;
      const auto code = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(d8, codes + i)));
      hn::StoreU(hn::Mul(code, hn::Set(d, scale)), d, to + i);
    });
  }
};

template <class Format>
HWY_INLINE void EncodeEach(const float* values, const uint32_t* positions, size_t rows, size_t dim,
                           size_t row_bytes, char* out) {
  for (size_t i = 0; i < rows; ++i, out += row_bytes) {
    Format::Encode(values + (positions == nullptr ? i : positions[i]) * dim, dim, out);
  }
}
template <class Format>
HWY_INLINE void DecodeEach(const char* in, const uint32_t* positions, size_t rows, size_t dim,
                           size_t row_bytes, float* values) {
  for (size_t i = 0; i < rows; ++i, in += row_bytes) {
    Format::Decode(in, dim, values + (positions == nullptr ? i : positions[i]) * dim);
  }
}

// Without positions, rows lie back to back and are converted as one long row.
template <class Format>
HWY_INLINE void EncodePlain(const float* values, const uint32_t* positions, size_t rows, size_t dim,
                            char* out) {
  if (positions == nullptr) return Format::Encode(values, rows * dim, out);
  EncodeEach<Format>(values, positions, rows, dim, dim * Format::kBytes, out);
}
template <class Format>
HWY_INLINE void DecodePlain(const char* in, const uint32_t* positions, size_t rows, size_t dim,
                            float* values) {
  if (positions == nullptr) return Format::Decode(in, rows * dim, values);
  DecodeEach<Format>(in, positions, rows, dim, dim * Format::kBytes, values);
}

void EncodeOn(v1::ValueFormat format, const float* values, const uint32_t* positions, size_t rows, size_t dim,
              char* out) {
  switch (format) {
    case v1::VALUES_F16:
      return EncodePlain<F16>(values, positions, rows, dim, out);
    case v1::VALUES_BF16:
      return EncodePlain<BF16>(values, positions, rows, dim, out);
    case v1::VALUES_INT8:
      return EncodeEach<Int8>(values, positions, rows, dim, sizeof(float) + dim, out);
    default:
      return EncodePlain<F32>(values, positions, rows, dim, out);
  }
}

void DecodeOn(v1::ValueFormat format, const char* in, const uint32_t* positions, size_t rows, size_t dim,
              float* values) {
  switch (format) {
    case v1::VALUES_F16:
      return DecodePlain<F16>(in, positions, rows, dim, values);
    case v1::VALUES_BF16:
      return DecodePlain<BF16>(in, positions, rows, dim, values);
    case v1::VALUES_INT8:
      return DecodeEach<Int8>(in, positions, rows, dim, sizeof(float) + dim, values);
    default:
      return DecodePlain<F32>(in, positions, rows, dim, values);
  }
}

uint32_t LargestBitsOn(const float* values, size_t n) { return LargestBits(values, n); }

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <string>

namespace tandem::ps {

HWY_EXPORT(EncodeOn);
HWY_EXPORT(DecodeOn);
HWY_EXPORT(LargestBitsOn);

absl::string_view Name(v1::ValueFormat format) {
  switch (format) {
    case v1::VALUES_F32:
      return "f32";
    case v1::VALUES_F16:
      return "f16";
    case v1::VALUES_BF16:
      return "bf16";
    case v1::VALUES_INT8:
      return "int8";
    default:
      return "unknown";
  }
}

size_t RowBytes(v1::ValueFormat format, size_t dim) {
  switch (format) {
    case v1::VALUES_F16:
    case v1::VALUES_BF16:
      return 2 * dim;
    case v1::VALUES_INT8:
      return sizeof(float) + dim;
    default:
      return sizeof(float) * dim;
  }
}

void EncodeRows(v1::ValueFormat format, const float* values, const uint32_t* positions, size_t rows,
                size_t dim, char* out) {
  if (rows == 0) return;
  if (format == v1::VALUES_F32 && positions == nullptr) {
    CopyBytes(out, values, rows * dim * sizeof(float));
    return;
  }
  HWY_DYNAMIC_DISPATCH(EncodeOn)(format, values, positions, rows, dim, out);
}

void DecodeRows(v1::ValueFormat format, const char* in, const uint32_t* positions, size_t rows, size_t dim,
                float* values) {
  if (rows == 0) return;
  if (format == v1::VALUES_F32 && positions == nullptr) {
    CopyBytes(values, in, rows * dim * sizeof(float));
    return;
  }
  HWY_DYNAMIC_DISPATCH(DecodeOn)(format, in, positions, rows, dim, values);
}

bool DecodeRows(v1::ValueFormat format, BytesReader* reader, const uint32_t* positions, size_t rows,
                size_t dim, float* values) {
  const size_t row_bytes = RowBytes(format, dim);
  if (rows > reader->remaining() / row_bytes) return false;
  const auto decode = [&](const char* in, size_t count) {
    DecodeRows(format, in, positions, count, dim, values);
    if (positions == nullptr) {
      values += count * dim;
    } else {
      positions += count;
    }
    rows -= count;
  };
  std::string cut;  // a row that begins in one chunk and ends in another
  while (rows > 0) {
    const absl::string_view chunk = reader->Next(rows * row_bytes);
    const size_t whole = chunk.size() / row_bytes;
    if (whole > 0) decode(chunk.data(), whole);
    const absl::string_view begun = chunk.substr(whole * row_bytes);
    if (begun.empty()) continue;
    cut.assign(begun.data(), begun.size());
    cut.resize(row_bytes);
    reader->Copy(cut.data() + begun.size(), row_bytes - begun.size());
    decode(cut.data(), 1);
  }
  return true;
}

float LargestMagnitude(absl::Span<const float> values) {
  const uint32_t bits = HWY_DYNAMIC_DISPATCH(LargestBitsOn)(values.data(), values.size());
  float magnitude;
  std::memcpy(&magnitude, &bits, sizeof(bits));
  return magnitude;
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
