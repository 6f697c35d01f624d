// SPDX-License-Identifier: Apache-2.0
// Tests what all command lines have in common: the version, help, and the exit code of mistakes.

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::RunTandem;
using ::testing::StartsWith;

TEST(CommandTest, VersionIsPrinted) {
  const Finished finished = RunTandem({"--version"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, StartsWith("tandem 0."));
}

TEST(CommandTest, HelpListsTheCommands) {
  const Finished finished = RunTandem({"--help"});
  EXPECT_EQ(finished.exit_code, 0);
  EXPECT_THAT(finished.out, AllOf(HasSubstr("run"), HasSubstr("ps"), HasSubstr("ckpt"), HasSubstr("data")));
}

TEST(CommandTest, BadCommandLinesAreRefusedWithCodeTwo) {
  for (const std::vector<std::string>& args :
       std::vector<std::vector<std::string>>{{},
                                             {"fly"},
                                             {"run"},
                                             {"run", "--"},
                                             {"run", "--ps", "-1", "--", "true"},
                                             {"run", "--workers", "0", "--", "true"},
                                             {"run", "--workers", "x", "--", "true"},
                                             {"run", "--wrokers", "2", "--", "true"},
                                             {"ps", "--num-servers", "0"},
                                             {"ckpt"},
                                             {"ckpt", "ls"},
                                             {"data"}}) {
    const Finished finished = RunTandem(args);
    EXPECT_EQ(finished.exit_code, 2) << ::testing::PrintToString(args);
    EXPECT_FALSE(finished.err.empty()) << ::testing::PrintToString(args);
  }
}

}  // namespace
}  // namespace tandem::cli
