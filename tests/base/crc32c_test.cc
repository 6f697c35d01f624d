// SPDX-License-Identifier: Apache-2.0
#include "base/crc32c.h"

#include <string>

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

}  // namespace
}  // namespace tandem
