// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <cstdint>
#include <random>
#include <string>

#include "absl/strings/string_view.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

// Test vectors from RFC 3720, B.4, and LevelDB's tests.
TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  EXPECT_EQ(Crc32c(rising), 0x46dd794eu);
  EXPECT_EQ(Crc32c(""), 0u);
}

// Divides bit by bit, as the definition says.
uint32_t Model(const std::string& bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

TEST(Crc32c, IsThatOfTheDefinitionForAllLengthsAndAlignments) {
  std::mt19937 random(7);
  std::string bytes(20000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (const size_t length : {1, 7, 8, 1023, 1024, 3071, 3072, 3073, 3079, 3080, 6143, 6144, 9999, 19000}) {
    for (const size_t begin : {0, 1, 3, 8, 1000}) {
      const std::string part = bytes.substr(begin, length);
      EXPECT_EQ(Crc32c(absl::string_view(bytes).substr(begin, length)), Model(part))
          << length << " at " << begin;
    }
  }
}

}  // namespace
}  // namespace tandem
