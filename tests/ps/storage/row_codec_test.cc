// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_codec.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "base/numeric/float16.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/every_target.h"

namespace tandem::ps {
namespace {

std::vector<float> Load(DType dtype, const std::vector<uint16_t>& bits) {
  std::vector<float> out(bits.size());
  const char* const row = reinterpret_cast<const char*>(bits.data());
  LoadRows(dtype, absl::MakeConstSpan(&row, 1), bits.size(), out.data());
  return out;
}

std::vector<uint16_t> Store(DType dtype, const std::vector<float>& values, const uint64_t* key) {
  std::vector<uint16_t> out(values.size() + 1, 0x5555);
  char* const row = reinterpret_cast<char*>(out.data());
  StoreRows(dtype, absl::MakeConstSpan(&row, 1), values.size(), values.data(), key);
  EXPECT_EQ(out.back(), 0x5555);  // nothing behind the row is touched
  out.pop_back();
  return out;
}

float Scalar(DType dtype, uint16_t bits) {
  return dtype == DType::kF16 ? Float16::ToFloat(bits) : BFloat16::ToFloat(bits);
}
uint16_t Scalar(DType dtype, float value) {
  return dtype == DType::kF16 ? Float16::FromFloat(value) : BFloat16::FromFloat(value);
}
uint16_t LargestFinite(DType dtype) { return dtype == DType::kF16 ? 0x7bff : 0x7f7f; }
uint16_t Infinity(DType dtype) { return dtype == DType::kF16 ? 0x7c00 : 0x7f80; }

// Floats of every size, and those around which rounding turns.
std::vector<float> ManyFloats(DType dtype) {
  std::vector<float> values;
  CounterRandom random(/*seed=*/1, 0);
  for (int i = 0; i < 200000; ++i) {
    const uint32_t bits = static_cast<uint32_t>(random());
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    values.push_back(value);
  }
  for (uint32_t bits = 0; bits < Infinity(dtype); bits += 3) {
    const float low = Scalar(dtype, static_cast<uint16_t>(bits));
    const float high = Scalar(dtype, static_cast<uint16_t>(bits + 1));
    if (!std::isfinite(high)) continue;
    const float middle = low + (high - low) / 2;
    for (const float value : {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
      values.push_back(value);
      values.push_back(-value);
    }
  }
  return values;
}

class RowCodecTest : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Formats, RowCodecTest, ::testing::Values(DType::kF16, DType::kBF16),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(RowCodecTest, LoadsEveryPatternAsTheScalarConversionDoes) {
  std::vector<uint16_t> bits(65536);
  for (uint32_t i = 0; i < bits.size(); ++i) bits[i] = static_cast<uint16_t>(i);
  tandem::testing::OnEveryTarget([&] {
    const std::vector<float> floats = Load(GetParam(), bits);
    for (uint32_t i = 0; i < bits.size(); ++i) {
      const float want = Scalar(GetParam(), bits[i]);
      ASSERT_EQ(std::memcmp(&floats[i], &want, sizeof(want)), 0) << i;
    }
  });
}

TEST_P(RowCodecTest, RoundsToNearestAsTheScalarConversionDoesAndKeepsLargeNumbersFinite) {
  const std::vector<float> values = ManyFloats(GetParam());
  tandem::testing::OnEveryTarget([&] {
    const std::vector<uint16_t> stored = Store(GetParam(), values, nullptr);
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t want = Scalar(GetParam(), values[i]);
      if ((want & 0x7fff) == Infinity(GetParam())) want = (want & 0x8000) | LargestFinite(GetParam());
      ASSERT_EQ(stored[i], want) << values[i];
    }
  });
}

TEST_P(RowCodecTest, ChanceRoundsToANeighbourAndTheSameOneOnEveryInstructionSet) {
  const std::vector<float> values = ManyFloats(GetParam());
  const uint64_t key = 77;
  const std::vector<uint16_t> best = Store(GetParam(), values, &key);
  for (size_t i = 0; i < values.size(); ++i) {
    const float got = Scalar(GetParam(), best[i]);
    if (std::isnan(values[i])) {
      ASSERT_TRUE(std::isnan(got));
      continue;
    }
    const float largest = Scalar(GetParam(), LargestFinite(GetParam()));
    const float value = std::min(std::max(values[i], -largest), largest);
    const float below = Scalar(GetParam(), static_cast<uint16_t>(best[i] - 1));  // in magnitude
    const float above = Scalar(GetParam(), static_cast<uint16_t>(best[i] + 1));
    ASSERT_TRUE(got == value || (best[i] & 0x7fff) == 0 || std::abs(below) < std::abs(value));
    ASSERT_TRUE(got == value || std::abs(above) > std::abs(value)) << value;
  }
  tandem::testing::OnEveryTarget([&] { ASSERT_EQ(Store(GetParam(), values, &key), best); });
  const uint64_t other = 78;
  EXPECT_NE(Store(GetParam(), values, &other), best);
}

TEST_P(RowCodecTest, ChanceIsFairOnAverage) {
  for (const float value : {1.0f + 0x1p-13f, 0.1f, -3.3f, 3e-6f, 7.1f}) {
    const std::vector<float> values(67, value);
    double sum = 0;
    constexpr uint64_t kKeys = 3000;
    for (uint64_t key = 0; key < kKeys; ++key) {
      const uint64_t mixed = Mix64(key);
      for (const uint16_t bits : Store(GetParam(), values, &mixed)) sum += Scalar(GetParam(), bits);
    }
    const double step = std::abs(Scalar(GetParam(), static_cast<uint16_t>(Scalar(GetParam(), value) + 1)) -
                                 Scalar(GetParam(), Scalar(GetParam(), value)));
    EXPECT_NEAR(sum / (67.0 * kKeys), value, 0.01 * step) << value;
  }
}

TEST(RowCodecF32Test, CopiesRowsAndLeavesOutThoseThatAreMissing) {
  for (const size_t dim : {1, 3, 4, 7, 16, 33}) {
    std::vector<float> a(dim, 1.5f), b(dim, -2.5f), out(3 * dim, 9.0f);
    const char* const rows[] = {reinterpret_cast<const char*>(a.data()), nullptr,
                                reinterpret_cast<const char*>(b.data())};
    LoadRows(DType::kF32, rows, dim, out.data());
    for (size_t i = 0; i < dim; ++i) {
      EXPECT_EQ(out[i], 1.5f);
      EXPECT_EQ(out[dim + i], 9.0f);
      EXPECT_EQ(out[2 * dim + i], -2.5f);
    }
  }
}

}  // namespace
}  // namespace tandem::ps
