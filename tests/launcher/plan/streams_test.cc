// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/streams.h"

#include "tests/testing/status_matchers.h"

namespace tandem::launcher {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(StreamsTest, ANumberIsForAll) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const StreamChoice choice, StreamChoice::Parse("--tee", "3"));
  EXPECT_EQ(choice.Of(0), StreamChoice::kOut | StreamChoice::kErr);
  EXPECT_EQ(choice.Of(17), 3);
}

TEST(StreamsTest, AListIsByLocalRankAndSparesTheOthers) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const StreamChoice choice, StreamChoice::Parse("--tee", "0:1,2:2"));
  EXPECT_EQ(choice.Of(0), StreamChoice::kOut);
  EXPECT_EQ(choice.Of(1), StreamChoice::kNone);
  EXPECT_EQ(choice.Of(2), StreamChoice::kErr);
}

TEST(StreamsTest, NonsenseIsQuoted) {
  for (const char* text : {"", "4", "-1", "x", "0:", "0:4", ":1", "a:1", "0:1,", "0:1,1"}) {
    EXPECT_THAT(StreamChoice::Parse("--tee", text),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(absl::StrCat("--tee '", text, "'"))));
  }
}

TEST(StreamsTest, AFilterNamesLocalRanks) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto all, ParseRanksFilter(""));
  EXPECT_FALSE(all.has_value());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto some, ParseRanksFilter("0,2"));
  EXPECT_EQ(some, (std::set<int>{0, 2}));
  EXPECT_THAT(ParseRanksFilter("0,x"), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'0,x'")));
}

}  // namespace
}  // namespace tandem::launcher
