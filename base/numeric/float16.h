// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_NUMERIC_FLOAT16_H_
#define TANDEM_BASE_NUMERIC_FLOAT16_H_

// Two-byte floating-point types for storage and transport. Arithmetic is done in float.
//
// Conversions from float round to nearest, ties to even, like IEEE 754 and the processors' own instructions,
// so that scalar and SIMD code give the same bits. A NaN stays a (quiet) NaN. Values too large for Float16
// become infinity. Subnormals are kept.

#include <cstdint>
#include <cstring>

namespace tandem {

namespace internal {
inline uint32_t FloatBits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}
inline float FloatFromBits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
}  // namespace internal

// IEEE 754 binary16: 1 sign, 5 exponent, 10 fraction bits. A plain value.
struct Float16 {
  uint16_t bits = 0;

  Float16() = default;
  explicit Float16(float value) : bits(FromFloat(value)) {}
  explicit operator float() const { return ToFloat(bits); }
  friend bool operator==(Float16 a, Float16 b) { return static_cast<float>(a) == static_cast<float>(b); }

  static uint16_t FromFloat(float value);
  static float ToFloat(uint16_t bits);
};

// The upper half of a float: 1 sign, 8 exponent, 7 fraction bits. A plain value.
struct BFloat16 {
  uint16_t bits = 0;

  BFloat16() = default;
  explicit BFloat16(float value) : bits(FromFloat(value)) {}
  explicit operator float() const { return ToFloat(bits); }
  friend bool operator==(BFloat16 a, BFloat16 b) { return static_cast<float>(a) == static_cast<float>(b); }

  static uint16_t FromFloat(float value) {
    const uint32_t f = internal::FloatBits(value);
    if ((f & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((f >> 16) | 0x40u);  // quiet NaN
    return static_cast<uint16_t>((f + 0x7fffu + ((f >> 16) & 1u)) >> 16);
  }
  static float ToFloat(uint16_t bits) { return internal::FloatFromBits(static_cast<uint32_t>(bits) << 16); }
};

inline uint16_t Float16::FromFloat(float value) {
  const uint32_t f = internal::FloatBits(value);
  const uint16_t sign = static_cast<uint16_t>((f >> 16) & 0x8000u);
  const uint32_t magnitude = f & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00u | static_cast<uint16_t>((magnitude >> 13) & 0x3ffu);
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
  if (magnitude >= 0x38800000u) {                       // normal: rebias the exponent, round to even
    const uint32_t rebiased = magnitude - 0x38000000u;
    return sign | static_cast<uint16_t>((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13);
  }
  // Subnormal: adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded by the hardware.
  const float shifted = internal::FloatFromBits(magnitude) + 0.5f;
  return sign | static_cast<uint16_t>(internal::FloatBits(shifted) - internal::FloatBits(0.5f));
}

inline float Float16::ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t magnitude = bits & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity or NaN (made quiet, as the hardware does)
    const uint32_t fraction = (magnitude & 0x3ffu) << 13;
    return internal::FloatFromBits(sign | 0x7f800000u | (fraction != 0 ? fraction | 0x400000u : 0u));
  }
  if (magnitude >= 0x400u) return internal::FloatFromBits(sign | ((magnitude << 13) + 0x38000000u));
  const float value = static_cast<float>(magnitude) * (1.0f / 16777216.0f);
  return internal::FloatFromBits(sign | internal::FloatBits(value));
}

}  // namespace tandem

#endif  // TANDEM_BASE_NUMERIC_FLOAT16_H_
