// SPDX-License-Identifier: Apache-2.0
// The values below are part of the file formats: buckets, initial rows, splits and shuffles of all earlier
// runs depend on them. If one of these tests fails, the code is wrong, never the number.

#include "base/random.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(Mix64Test, ValuesNeverChange) {
  EXPECT_EQ(Mix64(0), 0xe220a8397b1dcdafull);  // the first output of SplitMix64 seeded with 0, as published
  EXPECT_EQ(Mix64(1), 0x910a2dec89025cc1ull);
  EXPECT_EQ(Mix64(~0ull), 0xe4d971771b652c20ull);
  EXPECT_EQ(Mix64(1, 2), 0x87cfbf7f7fed3d79ull);
  EXPECT_EQ(Mix64(2, 1), 0x22b90bf479e62b59ull);
}

TEST(Mix64Test, EveryInputBitMovesAboutHalfOfTheOutputBits) {
  for (int bit = 0; bit < 64; ++bit) {
    int moved = 0;
    for (uint64_t x = 0; x < 1000; ++x) moved += __builtin_popcountll(Mix64(x) ^ Mix64(x ^ (1ull << bit)));
    EXPECT_NEAR(moved / 1000.0, 32.0, 1.0) << "bit " << bit;
  }
}

TEST(HashBytesTest, ValuesNeverChange) {
  const struct {
    const char* text;
    uint64_t seed0;
    uint64_t seed7;
  } kCases[] = {
      {"", 0xa706dd2f4d197e6full, 0xb8b4c2977eabce45ull},
      {"a", 0x6bfb5b0320dca441ull, 0x7881380ec8ebced2ull},
      {"user_id", 0x60f3ca1ce314add9ull, 0xeb075dd90c224599ull},
      {"12345678", 0xf406758ad2994416ull, 0x08791b67615dc5a8ull},
      {"123456789", 0xeb3cdda437488dc2ull, 0x8787c055d7a61633ull},
      {"the quick brown fox", 0x82aedabc3a1b97e0ull, 0x9c771885edb11e60ull},
  };
  for (const auto& c : kCases) {
    EXPECT_EQ(HashBytes(c.text), c.seed0) << c.text;
    EXPECT_EQ(HashBytes(c.text, 7), c.seed7) << c.text;
  }
}

TEST(HashBytesTest, DoesNotDependOnWhereTheBytesLie) {
  const std::string text = "alignment must not matter";
  for (size_t shift = 0; shift < 16; ++shift) {
    const std::string padded = std::string(shift, '#') + text;
    EXPECT_EQ(HashBytes(absl::string_view(padded).substr(shift)), HashBytes(text)) << shift;
  }
}

TEST(HashBytesTest, PrefixesZerosAndNeighboursDoNotCollide) {
  std::set<uint64_t> seen;
  size_t inserted = 0;
  for (int length = 0; length < 64; ++length, ++inserted) seen.insert(HashBytes(std::string(length, '\0')));
  for (int i = 0; i < 100000; ++i, ++inserted) seen.insert(HashBytes(std::to_string(i)));
  EXPECT_EQ(seen.size(), inserted);
}

TEST(CounterRandomTest, ValuesNeverChange) {
  CounterRandom bits(42, 7);
  for (uint64_t expected :
       {0x99953543535fb50cull, 0xc5ae8032b56a8a9dull, 0x13ba603b35a98717ull, 0xc4d0e206a2104643ull}) {
    EXPECT_EQ(bits(), expected);
  }
  EXPECT_EQ(CounterRandom(42, 7).Uniform(), static_cast<float>(0x999535) * 0x1.0p-24f);
  EXPECT_EQ(CounterRandom(42, 7).UniformDouble(),
            static_cast<double>(0x99953543535fb50cull >> 11) * 0x1.0p-53);
  EXPECT_EQ(CounterRandom(42, 7).Below(1000), 599);  // 0x0.9995... * 1000
  CounterRandom normal(42, 8);
  EXPECT_NEAR(normal.Normal(), -0.386230067765809, 1e-12);
}

TEST(CounterRandomTest, StreamsAreIndependentAndRepeatable) {
  CounterRandom a(1, 2), again(1, 2), other_stream(1, 3), other_seed(2, 2);
  for (int i = 0; i < 100; ++i) {
    const uint64_t value = a();
    EXPECT_EQ(value, again());
    EXPECT_NE(value, other_stream());
    EXPECT_NE(value, other_seed());
  }
}

TEST(CounterRandomTest, UniformFillsItsBinsEvenly) {
  constexpr int kBins = 64;
  constexpr int kDraws = 64000;
  std::vector<int> floats(kBins), doubles(kBins), integers(kBins);
  CounterRandom random(11, 5);
  for (int i = 0; i < kDraws; ++i) {
    const float f = random.Uniform();
    const double d = random.UniformDouble();
    ASSERT_TRUE(f >= 0 && f < 1 && d >= 0 && d < 1);
    ++floats[static_cast<int>(f * kBins)];
    ++doubles[static_cast<int>(d * kBins)];
    ++integers[random.Below(kBins)];
  }
  for (const auto& bins : {floats, doubles, integers}) {
    double chi2 = 0;
    for (int count : bins) chi2 += (count - 1000.0) * (count - 1000.0) / 1000.0;
    EXPECT_LT(chi2, 114);  // 63 degrees of freedom: 1 in 10,000 is above
    EXPECT_GT(chi2, 27);   // ... and 1 in 10,000 below: too even is not random either
  }
}

TEST(CounterRandomTest, BelowStaysBelowForAnyBound) {
  CounterRandom random(3, 3);
  for (uint64_t n :
       {uint64_t{1}, uint64_t{2}, uint64_t{3}, uint64_t{1} << 32, (uint64_t{1} << 63) + 1, ~uint64_t{0}}) {
    for (int i = 0; i < 1000; ++i) ASSERT_LT(random.Below(n), n);
  }
  // Without the rejection step, values below 2^62 would come up twice as often as others here.
  const uint64_t n = 3ull << 62;
  int low = 0;
  for (int i = 0; i < 30000; ++i) low += random.Below(n) < (1ull << 62) ? 1 : 0;
  EXPECT_NEAR(low / 30000.0, 1.0 / 3, 0.015);
}

TEST(CounterRandomTest, NormalHasTheMomentsOfANormal) {
  CounterRandom random(9, 9);
  constexpr int kDraws = 200000;
  double sum = 0, squares = 0, fourth = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.Normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0.0, 0.01);
  EXPECT_NEAR(squares / kDraws, 1.0, 0.015);
  EXPECT_NEAR(fourth / kDraws, 3.0, 0.12);
}

TEST(CounterRandomTest, WorksWithTheStandardLibrary) {
  std::vector<int> order(100);
  for (int i = 0; i < 100; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), CounterRandom(1, 1));
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace tandem
