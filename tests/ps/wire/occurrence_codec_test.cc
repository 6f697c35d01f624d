// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/occurrence_codec.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem::ps {
namespace {

TEST(OccurrenceCodecTest, TheWidthIsTheLeastThatHoldsTheLargestNumber) {
  EXPECT_EQ(OccurrenceWidth({}), 0u);
  EXPECT_EQ(OccurrenceWidth({1, 1, 1}), 0u);
  EXPECT_EQ(OccurrenceWidth({1, 2}), 1u);
  EXPECT_EQ(OccurrenceWidth({255, 1}), 1u);
  EXPECT_EQ(OccurrenceWidth({1, 256}), 2u);
  EXPECT_EQ(OccurrenceWidth({65535}), 2u);
  EXPECT_EQ(OccurrenceWidth({65536, 2}), 4u);
  EXPECT_EQ(OccurrenceWidth({~0u}), 4u);
}

TEST(OccurrenceCodecTest, NumbersComeBackFromAMultipleOfFourBytes) {
  for (const uint32_t width : {1u, 2u, 4u}) {
    for (size_t count = 0; count < 20; ++count) {
      std::vector<uint32_t> numbers(count);
      for (size_t i = 0; i < count; ++i) numbers[i] = ~0u >> (32 - 8 * width) >> (i % (8 * width));
      const uint64_t bytes = PackedOccurrenceBytes(count, width);
      EXPECT_EQ(bytes % 4, 0u);
      EXPECT_GE(bytes, count * width);
      EXPECT_LT(bytes, count * width + 4);
      std::string packed(bytes + 1, 'x');
      PackOccurrences(numbers, width, packed.data());
      EXPECT_EQ(packed.back(), 'x');
      EXPECT_EQ(packed.substr(count * width, bytes - count * width), std::string(bytes - count * width, 0));
      std::vector<uint32_t> back(count);
      UnpackOccurrences(packed.data(), count, width, back.data());
      EXPECT_EQ(back, numbers);
    }
  }
}

}  // namespace
}  // namespace tandem::ps
