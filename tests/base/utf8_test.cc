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

TEST(Utf8Test, QuotedTextHasNoControlCharacters) {
  EXPECT_EQ(Quoted("plain \"text\" gr\xC3\xBC\xC3\x9F"), "\"plain \"text\" gr\xC3\xBC\xC3\x9F\"");
  EXPECT_EQ(Quoted("a\tb\r\n"), R"("a\tb\r\n")");
  EXPECT_EQ(Quoted(std::string("\x1B[2J\x7F\0", 6)), R"("\x1b[2J\x7f\x00")");
  EXPECT_EQ(Quoted("\xFF\xFE"), R"("\xff\xfe")");
  EXPECT_EQ(Quoted("\xC2\x9B"
                   "1m"),
            R"("\xc2\x9b1m")")
      << "a control character of U+0080 to U+009F";
  EXPECT_EQ(Quoted("\xC2\xA7"), "\"\xC2\xA7\"");
  EXPECT_EQ(Quoted(""), "\"\"");
}

TEST(Utf8Test, LongTextIsCutBetweenCharacters) {
  EXPECT_EQ(Quoted("abcdef", 6), "\"abcdef\"");
  EXPECT_EQ(Quoted("abcdef", 5), "\"abcde\"...");
  EXPECT_EQ(Quoted("ab\xE2\x82\xAC"
                   "c",
                   4),
            "\"ab\"...");
  EXPECT_EQ(Quoted("ab\xE2\x82\xAC"
                   "c",
                   5),
            "\"ab\xE2\x82\xAC\"...");
}

}  // namespace
}  // namespace tandem
