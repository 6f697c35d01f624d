// SPDX-License-Identifier: Apache-2.0
#include "base/numeric/float16.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

// A binary format with `kFraction` fraction bits and exponents from kLeastExponent (of normal numbers) up,
// read and written through exact arithmetic in double.
template <class Half, int kFraction, int kBias>
struct Format {
  static constexpr uint16_t kInfinity = static_cast<uint16_t>((2 * kBias + 1) << kFraction);

  static double Value(uint16_t bits) {
    const int exponent = (bits & 0x7fff) >> kFraction;
    const int fraction = bits & ((1 << kFraction) - 1);
    const double magnitude = exponent == 0
                                 ? std::ldexp(fraction, 1 - kBias - kFraction)
                                 : std::ldexp(fraction + (1 << kFraction), exponent - kBias - kFraction);
    return (bits & 0x8000) != 0 ? -magnitude : magnitude;
  }

  // Returns the number nearest to the finite `value`; of two equally near ones, the one whose last bit is 0.
  static uint16_t Nearest(double value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double magnitude = std::fabs(value);
    // Bit patterns have the order of their values: halve the interval until two adjacent ones remain.
    uint16_t below = 0, above = kInfinity;
    while (above - below > 1) {
      const uint16_t middle = (below + above) / 2;
      (Value(middle) <= magnitude ? below : above) = middle;
    }
    // Infinity takes the place of the next number.
    const double down = magnitude - Value(below), up = Value(above) - magnitude;
    if (down != up) return sign | (down < up ? below : above);
    return sign | ((below & 1) == 0 ? below : above);
  }
};
using F16 = Format<Float16, 10, 15>;
using BF16 = Format<BFloat16, 7, 127>;

bool IsNan(uint16_t bits, uint16_t infinity) { return (bits & 0x7fff) > infinity; }

template <class Half, class Reference>
void ExpectEveryPatternSurvivesTheWayThroughFloat() {
  for (uint32_t pattern = 0; pattern <= 0xffff; ++pattern) {
    const uint16_t bits = static_cast<uint16_t>(pattern);
    const float value = Half::ToFloat(bits);
    if (IsNan(bits, Reference::kInfinity)) {
      ASSERT_TRUE(std::isnan(value)) << pattern;
      const uint16_t back = Half::FromFloat(value);
      ASSERT_TRUE(IsNan(back, Reference::kInfinity)) << pattern;
      ASSERT_EQ(back & 0x8000, bits & 0x8000) << pattern;
      continue;
    }
    if ((bits & 0x7fff) == Reference::kInfinity) {
      ASSERT_TRUE(std::isinf(value)) << pattern;
    } else {
      ASSERT_EQ(static_cast<double>(value), Reference::Value(bits)) << pattern;
    }
    ASSERT_EQ(std::signbit(value), (bits & 0x8000) != 0) << pattern;
    ASSERT_EQ(Half::FromFloat(value), bits) << pattern;
  }
}

template <class Half, class Reference>
void ExpectNearest(float value) {
  if (std::isfinite(value)) {
    ASSERT_EQ(Half::FromFloat(value), Reference::Nearest(value)) << std::hexfloat << value;
  }
}

// The hard cases are the middle between two adjacent numbers, and the values next to it.
template <class Half, class Reference>
void ExpectNearestAroundEveryPattern() {
  for (uint32_t pattern = 0; pattern < Reference::kInfinity; ++pattern) {
    const double low = Reference::Value(pattern), high = Reference::Value(pattern + 1);
    const float middle = static_cast<float>(low + (high - low) / 2);
    for (const float value : {middle, std::nextafter(middle, 0.0f),
                              std::nextafter(middle, std::numeric_limits<float>::infinity())}) {
      ExpectNearest<Half, Reference>(value);
      ExpectNearest<Half, Reference>(-value);
    }
  }
}

TEST(Float16Test, EveryPatternIsTheNumberItStandsForAndComesBack) {
  ExpectEveryPatternSurvivesTheWayThroughFloat<Float16, F16>();
}
TEST(BFloat16Test, EveryPatternIsTheNumberItStandsForAndComesBack) {
  ExpectEveryPatternSurvivesTheWayThroughFloat<BFloat16, BF16>();
}

TEST(Float16Test, RoundsToNearestEvenAroundEveryPattern) { ExpectNearestAroundEveryPattern<Float16, F16>(); }
TEST(BFloat16Test, RoundsToNearestEvenAroundEveryPattern) {
  ExpectNearestAroundEveryPattern<BFloat16, BF16>();
}

TEST(Float16Test, RandomFloatsRoundToNearestEven) {
  std::mt19937 random(11);
  for (int i = 0; i < 300000; ++i) {
    const float value = internal::FloatFromBits(static_cast<uint32_t>(random()));
    ExpectNearest<Float16, F16>(value);
    ExpectNearest<BFloat16, BF16>(value);
  }
}

TEST(Float16Test, WhatIsTooLargeBecomesInfinity) {
  EXPECT_EQ(Float16(65519.0f).bits, 0x7bff);
  EXPECT_EQ(Float16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(Float16(-1e9f).bits, 0xfc00);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

TEST(Float16Test, ANanStaysAQuietNan) {
  // Only its lowest bits are set: truncated, it would be infinity.
  const float signalling = internal::FloatFromBits(0x7f800001u);
  EXPECT_EQ(Float16::FromFloat(signalling), 0x7e00);
  EXPECT_EQ(BFloat16::FromFloat(signalling), 0x7fc0);
  EXPECT_EQ(Float16::FromFloat(internal::FloatFromBits(0xffffffffu)), 0xffff);
  EXPECT_EQ(BFloat16::FromFloat(internal::FloatFromBits(0xffffffffu)), 0xffff);
}

TEST(Float16Test, ComparesAsNumbers) {
  EXPECT_EQ(Float16(0.0f), Float16(-0.0f));
  EXPECT_FALSE(Float16(std::nanf("")) == Float16(std::nanf("")));
  EXPECT_EQ(BFloat16(1.5f), BFloat16(1.5f));
  EXPECT_EQ(static_cast<float>(BFloat16(1.5f)), 1.5f);
}

}  // namespace
}  // namespace tandem
