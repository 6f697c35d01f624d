// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/man_page.h"

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunTandem;

TEST(ManPageTest, HasEveryCommandWithItsFlags) {
  const std::string page = RunTandem({"man"}).out;
  for (const char* text :
       {".TH TANDEM 1", ".SS tandem ckpt ls DIR", ".SS tandem bench allreduce", "\\fB\\-\\-max\\-held\\fR",
        "auto|grpc", "Variable: TANDEM_PS_THREADS.", "\n75\n", "\n128 + N\n"}) {
    EXPECT_THAT(page, HasSubstr(text));
  }
}

TEST(ManPageTest, TextIsNotTakenForRoffsRequests) {
  const Command program{.path = "x",
                        .description = "d",
                        .commands = {{.path = "x y", .description = ".hidden\n'quoted\\n", .flags = {}}}};
  const std::string page = ManPage(program, "1");
  EXPECT_THAT(page, HasSubstr("\n\\&.hidden\n.br\n\\&'quoted\\en.\n"));
}

TEST(ManPageTest, GroffFormatsItWithoutAWarning) {
  if (std::system("command -v groff >/dev/null") != 0) GTEST_SKIP() << "no groff";
  testing::TempDir dir;
  const std::string page = absl::StrCat(dir.path(), "/tandem.1"),
                    warnings = absl::StrCat(dir.path(), "/warnings");
  std::ofstream(page) << RunTandem({"man"}).out;
  EXPECT_EQ(std::system(absl::StrCat("groff -man -Tutf8 -ww -z ", page, " 2>", warnings).c_str()), 0);
  std::stringstream text;
  text << std::ifstream(warnings).rdbuf();
  EXPECT_EQ(text.str(), "");
}

}  // namespace
}  // namespace tandem::cli
