// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/tree_json.h"

#include "cli/command_line/man_page.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using testing::StatusIs;

TEST(TreeJsonTest, ATreeComesBackAsItWas) {
  const Flag flag = {.names = {"-r", "--report"},
                     .takes_value = true,
                     .value = "TEXT",
                     .choices = {"a", "b"},
                     .description = "say \"how\"\n2",
                     .default_value = "a",
                     .variable = "TANDEM_R"};
  const Command tree = {.path = "x",
                        .description = "d",
                        .footer = "f",
                        .commands = {{.path = "x y", .flags = {flag}, .positionals = {{.names = {"DIR"}}}}}};
  TANDEM_ASSERT_OK_AND_ASSIGN(const Command read, ParseTree(TreeToJson(tree)));
  EXPECT_EQ(ManPage(read, "1"), ManPage(tree, "1"));
  ASSERT_EQ(read.commands.size(), 1u);
  EXPECT_EQ(read.commands[0].flags[0].choices, flag.choices);
  EXPECT_TRUE(read.commands[0].flags[0].takes_value);
}

TEST(TreeJsonTest, OtherTextsAreNoTree) {
  for (const char* text : {"", "x", "{}", "[]", "{\"path\": 1}"}) {
    EXPECT_THAT(ParseTree(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
}

}  // namespace
}  // namespace tandem::cli
