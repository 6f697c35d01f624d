// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/value_codec.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/numeric/float16.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/not_finite.h"
#include "tests/testing/every_target.h"

namespace tandem::ps {
namespace {

using testing::kInf;
using testing::kNan;
constexpr float kMax = std::numeric_limits<float>::max();

// The reference converts one number after the other, as the header describes.
std::string ScalarEncode(v1::ValueFormat format, const std::vector<float>& values, size_t dim) {
  std::string out;
  const auto append = [&](const auto& value) {
    out.append(reinterpret_cast<const char*>(&value), sizeof(value));
  };
  for (size_t row = 0; row < values.size() / dim; ++row) {
    const float* const from = values.data() + row * dim;
    if (format == v1::VALUES_INT8) {
      float largest = 0;
      bool finite = true;
      for (size_t d = 0; d < dim; ++d) {
        finite = finite && std::isfinite(from[d]);
        largest = std::max(largest, std::abs(from[d]));
      }
      largest = std::min(largest, 0x1p127f);
      const bool zero = !finite || largest < 0x1p-119f;
      const float scale = !finite ? kNan : zero ? 0.0f : largest / 127.0f;
      append(scale);
      for (size_t d = 0; d < dim; ++d) {
        const float code = zero ? 0 : std::nearbyint(from[d] * (127.0f / largest));
        append(static_cast<int8_t>(std::max(-127.0f, std::min(127.0f, code))));
      }
      continue;
    }
    for (size_t d = 0; d < dim; ++d) {
      const float value = from[d];
      if (format == v1::VALUES_F16) {
        append(Float16::FromFloat(std::isfinite(value) ? std::max(-65504.0f, std::min(65504.0f, value))
                                                       : value));
      } else if (format == v1::VALUES_BF16) {
        const float most = BFloat16::ToFloat(0x7f7f);
        append(BFloat16::FromFloat(std::isfinite(value) ? std::max(-most, std::min(most, value)) : value));
      } else {
        append(value);
      }
    }
  }
  return out;
}

std::vector<float> ScalarDecode(v1::ValueFormat format, const std::string& bytes, size_t dim) {
  std::vector<float> out;
  for (size_t at = 0; at < bytes.size(); at += RowBytes(format, dim)) {
    for (size_t d = 0; d < dim; ++d) {
      const char* const row = bytes.data() + at;
      if (format == v1::VALUES_INT8) {
        float scale;
        std::memcpy(&scale, row, 4);
        out.push_back(scale * static_cast<float>(static_cast<int8_t>(row[4 + d])));
      } else if (format == v1::VALUES_F32) {
        float value;
        std::memcpy(&value, row + 4 * d, 4);
        out.push_back(value);
      } else {
        uint16_t bits;
        std::memcpy(&bits, row + 2 * d, 2);
        out.push_back(format == v1::VALUES_F16 ? Float16::ToFloat(bits) : BFloat16::ToFloat(bits));
      }
    }
  }
  return out;
}

// Encodes to an odd address, followed by a byte that must not be touched.
std::string Encode(v1::ValueFormat format, const std::vector<float>& values, size_t dim,
                   const uint32_t* positions = nullptr) {
  const size_t rows = values.size() / dim;
  const size_t bytes = rows * RowBytes(format, dim);
  std::string memory(bytes + 2, '\x5a');
  EncodeRows(format, values.data(), positions, rows, dim, memory.data() + 1);
  EXPECT_EQ(memory.front(), '\x5a');
  EXPECT_EQ(memory.back(), '\x5a');
  return memory.substr(1, bytes);
}

std::vector<float> Decode(v1::ValueFormat format, const std::string& bytes, size_t dim) {
  const size_t rows = bytes.size() / RowBytes(format, dim);
  auto exact = std::make_unique<char[]>(bytes.size() + 1);
  std::memcpy(exact.get() + 1, bytes.data(), bytes.size());
  std::vector<float> out(rows * dim + 1, 7.0f);
  DecodeRows(format, exact.get() + 1, nullptr, rows, dim, out.data());
  EXPECT_EQ(out.back(), 7.0f);
  out.pop_back();
  return out;
}

void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(want[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << i;
    } else {
      ASSERT_EQ(std::memcmp(&got[i], &want[i], sizeof(float)), 0) << i << ": " << got[i] << ", " << want[i];
    }
  }
}

std::vector<float> RandomRows(size_t rows, size_t dim, CounterRandom* random) {
  std::vector<float> values(rows * dim);
  for (size_t row = 0; row < rows; ++row) {
    const int exponent = static_cast<int>(random->Below(250)) - 140;
    for (size_t d = 0; d < dim; ++d) {
      const float value = std::ldexp(static_cast<float>(random->Below(1 << 24)) - (1 << 23), exponent - 23);
      values[row * dim + d] = random->Below(9) == 0 ? 0.0f : value;
    }
  }
  return values;
}

class ValueCodecTest : public ::testing::TestWithParam<v1::ValueFormat> {};
INSTANTIATE_TEST_SUITE_P(Formats, ValueCodecTest,
                         ::testing::Values(v1::VALUES_F32, v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8),
                         [](const auto& info) { return std::string(Name(info.param)); });

TEST_P(ValueCodecTest, EncodesAndDecodesAsTheScalarReferenceOnOddSizes) {
  tandem::testing::OnEveryTarget([&] {
    CounterRandom random(1, 0);
    for (const size_t dim : {1, 2, 3, 4, 5, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127}) {
      for (const size_t rows : {0, 1, 3, 10}) {
        const std::vector<float> values = RandomRows(rows, dim, &random);
        const std::string encoded = Encode(GetParam(), values, dim);
        ASSERT_EQ(encoded, ScalarEncode(GetParam(), values, dim)) << "dim " << dim;
        ExpectSameBits(Decode(GetParam(), encoded, dim), ScalarDecode(GetParam(), encoded, dim));
      }
    }
  });
}

TEST_P(ValueCodecTest, AnyBytesDecodeAsTheScalarReferenceDoes) {
  tandem::testing::OnEveryTarget([&] {
    CounterRandom random(2, 0);
    for (const size_t dim : {1, 6, 16, 19}) {
      std::string bytes(50 * RowBytes(GetParam(), dim), '\0');
      for (char& c : bytes) c = static_cast<char>(random());
      ExpectSameBits(Decode(GetParam(), bytes, dim), ScalarDecode(GetParam(), bytes, dim));
    }
  });
}

TEST_P(ValueCodecTest, RowsGoToAndComeFromThePositionsGiven) {
  CounterRandom random(3, 0);
  for (const size_t dim : {3, 16}) {
    const std::vector<float> values = RandomRows(20, dim, &random);
    std::vector<uint32_t> positions(20);
    std::iota(positions.begin(), positions.end(), 0);
    std::reverse(positions.begin(), positions.end());
    const std::string encoded = Encode(GetParam(), values, dim, positions.data());
    std::vector<float> there(values.size()), straight(values.size());
    DecodeRows(GetParam(), encoded.data(), positions.data(), 20, dim, there.data());
    DecodeRows(GetParam(), Encode(GetParam(), values, dim).data(), nullptr, 20, dim, straight.data());
    ExpectSameBits(there, straight);
  }
}

TEST_P(ValueCodecTest, AMessageInPiecesDecodesAsOneInOne) {
  CounterRandom random(4, 0);
  const size_t dim = 5, rows = 40;
  const std::string encoded = Encode(GetParam(), RandomRows(rows, dim, &random), dim);
  const std::vector<float> want = Decode(GetParam(), encoded, dim);
  std::vector<uint32_t> positions(rows);
  for (uint32_t i = 0; i < rows; ++i) positions[i] = (i * 7) % rows;
  for (int round = 0; round < 50; ++round) {
    Bytes chunks;
    for (size_t at = 0; at < encoded.size();) {
      const size_t size = std::min<size_t>(1 + random.Below(30), encoded.size() - at);
      chunks.Append(Slice::FromString(encoded.substr(at, size)));
      at += size;
    }
    BytesReader reader(chunks);
    std::vector<float> got(rows * dim), placed(rows * dim);
    ASSERT_TRUE(DecodeRows(GetParam(), &reader, nullptr, rows, dim, got.data()));
    EXPECT_EQ(reader.remaining(), 0u);
    ExpectSameBits(got, want);
    BytesReader again(chunks);
    ASSERT_TRUE(DecodeRows(GetParam(), &again, positions.data(), rows, dim, placed.data()));
    for (size_t i = 0; i < rows; ++i) {
      EXPECT_EQ(std::memcmp(&placed[positions[i] * dim], &want[i * dim], dim * sizeof(float)), 0);
    }
    BytesReader short_one(chunks);
    EXPECT_FALSE(DecodeRows(GetParam(), &short_one, nullptr, rows + 1, dim, got.data()));
    EXPECT_EQ(short_one.remaining(), encoded.size());
  }
}

TEST_P(ValueCodecTest, WhatIsLostIsAtMostHalfAStepOfTheFormat) {
  CounterRandom random(5, 0);
  const size_t dim = 16;
  for (int round = 0; round < 2000; ++round) {
    std::vector<float> row(dim);
    for (float& value : row) value = static_cast<float>(random.Below(2000001)) / 1e6f - 1.0f;
    const float largest = LargestMagnitude(row);
    const std::vector<float> back = Decode(GetParam(), Encode(GetParam(), row, dim), dim);
    for (size_t d = 0; d < dim; ++d) {
      const float step = GetParam() == v1::VALUES_F32    ? 0.0f
                         : GetParam() == v1::VALUES_F16  ? std::abs(row[d]) * 0x1p-11f + 0x1p-25f
                         : GetParam() == v1::VALUES_BF16 ? std::abs(row[d]) * 0x1p-8f
                                                         : largest / 254 * 1.0001f;
      ASSERT_LE(std::abs(back[d] - row[d]), step);
    }
  }
}

TEST(ValueCodecSpecials, NanAndInfArriveAsSuchAndLargeNumbersStayFinite) {
  tandem::testing::OnEveryTarget([] {
    for (const v1::ValueFormat format : {v1::VALUES_F16, v1::VALUES_BF16}) {
      const std::vector<float> row = {kNan, kInf, -kInf, kMax, -kMax, 0x1p-149f, -0.0f, 1.0f};
      const std::vector<float> back = Decode(format, Encode(format, row, row.size()), row.size());
      EXPECT_TRUE(std::isnan(back[0]));
      EXPECT_EQ(back[1], kInf);
      EXPECT_EQ(back[2], -kInf);
      const float most = format == v1::VALUES_F16 ? 65504.0f : BFloat16::ToFloat(0x7f7f);
      EXPECT_EQ(back[3], most);
      EXPECT_EQ(back[4], -most);
      EXPECT_TRUE(std::signbit(back[6]));
      EXPECT_EQ(back[7], 1.0f);
    }
  });
}

TEST(ValueCodecSpecials, AnInt8RowWithNanOrInfIsNanThroughout) {
  tandem::testing::OnEveryTarget([] {
    for (const float wrong : {kNan, kInf, -kInf}) {
      for (size_t at = 0; at < 19; ++at) {
        std::vector<float> row(19, 1.0f);
        row[at] = wrong;
        for (const float value : Decode(v1::VALUES_INT8, Encode(v1::VALUES_INT8, row, 19), 19)) {
          EXPECT_TRUE(std::isnan(value));
        }
      }
    }
  });
}

TEST(ValueCodecSpecials, Int8RowsOfZerosAndOfTinyNumbersAreZerosAndHugeOnesStayFinite) {
  tandem::testing::OnEveryTarget([] {
    const auto through = [](float value) {
      const std::vector<float> row = {value, -value, 0.0f};
      return Decode(v1::VALUES_INT8, Encode(v1::VALUES_INT8, row, 3), 3);
    };
    for (const float tiny : {0.0f, 0x1p-149f, 0x1p-127f, std::nextafter(0x1p-119f, 0.0f)}) {
      EXPECT_THAT(through(tiny), ::testing::Each(0.0f)) << tiny;
    }
    EXPECT_NEAR(through(0x1p-119f)[0] * 0x1p119f, 1.0f, 1e-5f);
    EXPECT_NEAR(through(kMax)[0] * 0x1p-127f, 1.0f, 1e-5f);
    EXPECT_NEAR(through(kMax)[1] * 0x1p-127f, -1.0f, 1e-5f);
  });
}

TEST(LargestMagnitudeTest, IsNanBeforeInfBeforeNumbers) {
  tandem::testing::OnEveryTarget([] {
    for (const size_t size : {1, 5, 16, 40, 67}) {
      for (size_t at = 0; at < size; ++at) {
        std::vector<float> values(size, -1.5f);
        EXPECT_EQ(LargestMagnitude(values), 1.5f);
        values[at] = -3.0f;
        EXPECT_EQ(LargestMagnitude(values), 3.0f);
        values[at] = -kInf;
        EXPECT_EQ(LargestMagnitude(values), kInf);
        values[size - 1 - at] = kNan;
        EXPECT_TRUE(std::isnan(LargestMagnitude(values)));
      }
    }
    EXPECT_EQ(LargestMagnitude({}), 0.0f);
  });
}

}  // namespace
}  // namespace tandem::ps
