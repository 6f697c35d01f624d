// SPDX-License-Identifier: Apache-2.0
#include "base/utf8.h"

#include <string>

#include "gtest/gtest.h"

namespace tandem {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

TEST(Utf8Test, ValidTextStaysAsItIs) {
  for (const std::string text : {"", "a\n\t\"'\\", "gr\xC3\xBC\xC3\x9F", "\xE2\x82\xAC", "\xF0\x9F\x98\x80",
                                 "\xED\x9F\xBF\xEE\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_EQ(ValidUtf8(text), text);
  }
  EXPECT_EQ(ValidUtf8(std::string("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Utf8Test, EachByteOfNoCharacterIsReplaced) {
  EXPECT_EQ(ValidUtf8("gr\xFC\xDF"), "gr" + kBad + kBad);            // Latin-1
  EXPECT_EQ(ValidUtf8("\xE2\x82"), kBad + kBad);                     // cut short
  EXPECT_EQ(ValidUtf8("\xE2\x82x"), kBad + kBad + "x");              // the text after it is kept
  EXPECT_EQ(ValidUtf8("\x80"), kBad);                                // the middle of a character
  EXPECT_EQ(ValidUtf8("\xC0\x80"), kBad + kBad);                     // overlong
  EXPECT_EQ(ValidUtf8("\xE0\x9F\xBF"), kBad + kBad + kBad);          // likewise
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80"), kBad + kBad + kBad);          // half of a UTF-16 pair
  EXPECT_EQ(ValidUtf8("\xF4\x90\x80\x80").size(), 4 * kBad.size());  // beyond the last
}

}  // namespace
}  // namespace tandem
