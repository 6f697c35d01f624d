// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem {
namespace {

TEST(Json, IsParsedUpToAFixedDepth) {
  const auto nested = [](int depth, char open, char close) {
    return std::string(depth, open) + std::string(depth, close);
  };
  EXPECT_FALSE(ParseJson(nested(100, '[', ']')).is_discarded());
  EXPECT_TRUE(ParseJson(nested(101, '[', ']')).is_discarded());
  // The depth of these would overflow the stack where they are copied.
  EXPECT_TRUE(ParseJson(nested(1 << 20, '[', ']')).is_discarded());
  EXPECT_TRUE(ParseOrderedJson(nested(1 << 20, '[', ']')).is_discarded());
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  EXPECT_TRUE(ParseOrderedJson(objects + "1" + std::string(1000, '}')).is_discarded());
}

TEST(Json, BracketsInStringsDoNotCount) {
  const std::string text = "[\"" + std::string(1000, '[') + "\\\"" + std::string(1000, '{') + "\\\\\", 1]";
  const nlohmann::json json = ParseJson(text);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json.size(), 2u);
}

}  // namespace
}  // namespace tandem
