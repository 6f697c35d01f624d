// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/companions.h"

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "launcher/host/run_program.h"
#include "tests/testing/processes/processes.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using testing::RunTandem;
using testing::StatusIs;

TEST(CompanionsTest, EachHasTheCommandThatHelpListsForIt) {
  const std::string help = RunTandem({"--help"}).out;
  for (const Companion* companion :
       {&kRl, &kReplay, &kWeights, &kTop, &kStatus, &kTrace, &kTable, &kDoctor, &kBench}) {
    const auto own = RunTandem({companion->command, "--help"});
    EXPECT_EQ(own.exit_code, 0) << own.err;
    EXPECT_EQ(own.out.find(companion->description), 0u) << own.out;
    EXPECT_THAT(own.out, HasSubstr(absl::StrCat("Usage: tandem ", companion->command)));
    EXPECT_THAT(help, HasSubstr(companion->description));
    EXPECT_EQ(FindCompanion(companion->command), companion);
  }
  EXPECT_EQ(FindCompanion("run"), nullptr);
  EXPECT_EQ(FindCompanion(""), nullptr);
}

TEST(CompanionsTest, WithoutItsProgramACommandSaysWhatIsMissing) {
  testing::TempDir dir;
  const std::string alone = dir.File("tandem");
  std::filesystem::copy_file(TANDEM_BINARY, alone);
  const absl::StatusOr<std::string> bench =
      launcher::RunProgram({alone, "bench", "ps"}, testing::kTestTimeout);
  EXPECT_THAT(bench, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("exit code 127")));
  EXPECT_THAT(bench.status().message(), HasSubstr("No such file or directory"));
  EXPECT_THAT(bench.status().message(), HasSubstr(absl::StrCat("'", alone, "-bench'")));
  EXPECT_THAT(bench.status().message(), HasSubstr("install all of Tandem"));
  const absl::StatusOr<std::string> man =
      launcher::RunProgram({alone, "man"}, testing::kTestTimeout, size_t{1} << 20);
  TANDEM_ASSERT_OK(man);
  EXPECT_THAT(*man, HasSubstr(".SS tandem bench\nMeasure this machine."));
}

}  // namespace
}  // namespace tandem::cli
