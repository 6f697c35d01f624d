// SPDX-License-Identifier: Apache-2.0
#include "cli/command_line/mistakes.h"

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunTandem;

// Runs a wrong command line. Returns the error.
std::string ErrorOf(const std::vector<std::string>& args) {
  const Finished finished = RunTandem(args);
  EXPECT_EQ(finished.exit_code, 2) << ::testing::PrintToString(args);
  EXPECT_EQ(finished.out, "");
  return finished.err;
}

TEST(MistakesTest, AMistypedCommandIsNamedAndCorrected) {
  EXPECT_EQ(ErrorOf({"trian", "job.yaml", "--report", "x"})
                .substr(0, 60)
                .find("tandem: unknown command 'trian' (did you mean 'train'?)"),
            0u);
  EXPECT_THAT(ErrorOf({"ckpt", "lss", "x"}),
              AllOf(HasSubstr("tandem ckpt: unknown command 'lss' (did you mean 'ls'?)"),
                    HasSubstr("Run 'tandem ckpt --help'")));
}

TEST(MistakesTest, ACommandThatIsLikeNoOtherGetsTheList) {
  EXPECT_THAT(ErrorOf({"fly"}), AllOf(HasSubstr("unknown command 'fly'; commands: run, train"),
                                      Not(HasSubstr("did you mean"))));
}

TEST(MistakesTest, AMissingCommandGetsTheList) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("tandem: a command is required: run, train"));
  EXPECT_THAT(ErrorOf({"ckpt"}), HasSubstr("tandem ckpt: a command is required: ls, verify, digest"));
}

TEST(MistakesTest, AMistypedFlagIsNamedAndCorrected) {
  EXPECT_THAT(ErrorOf({"run", "--wrokers", "2", "--", "true"}),
              HasSubstr("tandem run: unknown flag '--wrokers' (did you mean '--workers'?)"));
  EXPECT_THAT(ErrorOf({"train", "job.yaml", "--reprot=x"}),
              HasSubstr("tandem train: unknown flag '--reprot' (did you mean '--report'?)"));
  // The flag is the mistake, although a required one is missing as well.
  EXPECT_THAT(ErrorOf({"data", "planted", "--ot", "x"}),
              HasSubstr("unknown flag '--ot' (did you mean '--out'?)"));
}

TEST(MistakesTest, AnArgumentTooManyIsNamed) {
  EXPECT_THAT(ErrorOf({"train", "a.yaml", "b.yaml"}),
              HasSubstr("tandem train: unexpected argument 'b.yaml'"));
}

TEST(MistakesTest, AMissingArgumentIsNamedWithItsCommand) {
  EXPECT_THAT(ErrorOf({"ckpt", "ls"}), HasSubstr("tandem ckpt ls: DIR is required"));
}

TEST(MistakesTest, RangesAreWrittenAsAPersonWritesThem) {
  EXPECT_THAT(ErrorOf({"ps", "--num-servers", "0"}),
              AllOf(HasSubstr("tandem ps: --num-servers: 0 is not a number "), Not(HasSubstr("000"))));
  EXPECT_THAT(ErrorOf({"ps", "--max-held", "5"}),
              HasSubstr("--max-held: 5 is not a number in [1MiB, 1TiB]\n"));
}

TEST(MistakesTest, RangesOfTheParserAreWrittenTheSame) {
  const CLI::Range percent(0.5, 100.0);
  const auto text = [](const CLI::Validator& validator, std::string value) {
    return WithReadableRange(validator(value), absl::StrCat("FLOAT:", validator.get_description()));
  };
  EXPECT_EQ(text(CLI::PositiveNumber, "0"), "0 is not a number greater than 0");
  EXPECT_EQ(text(CLI::NonNegativeNumber, "-1"), "-1 is not a number of at least 0");
  EXPECT_EQ(text(percent, "101"), "101 is not a number in [0.5, 100]");
  EXPECT_EQ(text(percent, "x"), "x is not a number in [0.5, 100]");
  EXPECT_EQ(text(CLI::Range(1, 20), "21"), "21 is not a number in [1, 20]");
}

TEST(MistakesTest, AWordWithControlCharactersIsPrintedWithoutThem) {
  EXPECT_THAT(ErrorOf({"\x1b[31m"}), HasSubstr("unknown command '\\x1b[31m'"));
}

TEST(MistakesTest, OtherMessagesAreKept) {
  for (const char* message : {"foo not in {auto,grpc}", "Value", "Value 3 not in range",
                              "Value a not in range b to c", "Value 1 not in range 2 to "}) {
    EXPECT_EQ(WithReadableRange(message, "INT"), message);
  }
}

}  // namespace
}  // namespace tandem::cli
