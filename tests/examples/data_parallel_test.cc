// SPDX-License-Identifier: Apache-2.0
// Tests that the example in docs/collectives.md equals the example file, and that the file runs.

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

TEST(DataParallelExampleTest, LearnsOnTwoRanks) {
  testing::TempDir directory;
  const testing::Finished run =
      testing::RunTandem({"run", "--workers", "2", "--", TANDEM_EXAMPLE_BINARY}, {}, directory.path());
  EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
  EXPECT_THAT(run.out, HasSubstr("2 ranks, loss"));
}

TEST(DataParallelExampleTest, StandsInTheDocumentationAsItIs) {
  const std::string root = TANDEM_SOURCE_DIR;
  const std::string code = testing::ReadFile(root + "/examples/data_parallel.cc");
  const std::string page = testing::ReadFile(root + "/docs/collectives.md");
  ASSERT_FALSE(code.empty());
  EXPECT_TRUE(absl::StrContains(page, absl::StrCat("```cpp\n", code, "```\n")))
      << "copy examples/data_parallel.cc into the example of docs/collectives.md";
}

}  // namespace
}  // namespace tandem
