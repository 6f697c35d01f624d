// SPDX-License-Identifier: Apache-2.0
// Lets real shells load the scripts of `tandem completion` and complete with them.
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;
using testing::RunTandem;

// Runs a shell script. Returns what it prints, by word.
std::vector<std::string> ShellWords(const std::string& command) {
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string out;
  char buffer[4096];
  size_t size;
  while (pipe != nullptr && (size = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0)
    out.append(buffer, size);
  EXPECT_TRUE(pipe != nullptr && ::pclose(pipe) == 0) << command;
  return absl::StrSplit(out, absl::ByAnyChar(" \n"), absl::SkipEmpty());
}

class CompletionTest : public ::testing::Test {
 protected:
  // Writes the script of a shell to a file. Returns its path.
  std::string Script(const std::string& shell) {
    const Finished finished = RunTandem({"completion", shell});
    EXPECT_EQ(finished.exit_code, 0) << finished.err;
    const std::string path = absl::StrCat(dir_.path(), "/", shell);
    std::ofstream(path) << finished.out;
    return path;
  }
  // Returns bash's completions of the last of `words`, which follow "tandem".
  std::vector<std::string> Bash(const std::string& words, int count) {
    const std::string path = absl::StrCat(dir_.path(), "/complete");
    std::ofstream(path) << "source " << Script("bash") << "\nCOMP_WORDS=(tandem " << words
                        << ")\nCOMP_CWORD=" << count << "\n_tandem\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
    return ShellWords(absl::StrCat("bash ", path));
  }
  // Returns what the script offers to zsh's completion system, which this replaces: names with descriptions.
  std::vector<std::string> Zsh(const std::string& words, int current, const std::string& prefix) {
    const std::string path = absl::StrCat(dir_.path(), "/complete.zsh");
    std::ofstream(path) << "compdef() { }\n_files() { print FILES }\n_describe() { print -l -- ${(P)4} }\n"
                        << "compadd() { print -l -- ${(P)2} }\nsource " << Script("zsh") << "\nwords=(tandem "
                        << words << ")\nCURRENT=" << current << "\nPREFIX='" << prefix << "'\n_tandem\n";
    return ShellWords(absl::StrCat("zsh -f ", path));
  }
  testing::TempDir dir_;
};

TEST_F(CompletionTest, BashCompletesCommands) {
  EXPECT_THAT(Bash("tr", 1), ElementsAre("train", "trace"));
  EXPECT_THAT(Bash("ckpt ''", 2), IsSupersetOf({"ls", "verify", "digest"}));
  EXPECT_THAT(Bash("''", 1), IsSupersetOf({"run", "ps", "completion"}));
}

TEST_F(CompletionTest, BashCompletesFlagsOfTheCommand) {
  EXPECT_THAT(Bash("ps --max-h", 2), ElementsAre("--max-held"));
  EXPECT_THAT(Bash("ckpt ls --", 3), Contains("--help"));
  EXPECT_THAT(Bash("run --rdzv", 2), AllOf(Contains("--rdzv-id"), Not(Contains("--rdzv_id"))));
}

TEST_F(CompletionTest, BashCompletesValuesOfAFixedSet) {
  EXPECT_THAT(Bash("ps --transport ''", 3), ElementsAre("auto", "grpc"));
  EXPECT_THAT(Bash("ps --transport = g", 4), ElementsAre("grpc"));  // bash splits at '='
  EXPECT_THAT(Bash("ps --transport auto --thr", 4), ElementsAre("--threads"));
}

TEST_F(CompletionTest, BashLeavesFilesAndOtherProgramsToItsDefault) {
  EXPECT_THAT(Bash("train ''", 2), IsEmpty());
  EXPECT_THAT(Bash("ps --spill-dir ''", 3), IsEmpty());
  EXPECT_THAT(Bash("run --ps 2 train.py --fl", 5), IsEmpty());
  EXPECT_THAT(Bash("run --ps 2 -- ls --", 6), IsEmpty());
}

TEST_F(CompletionTest, ZshCompletesTheSame) {
  if (std::system("command -v zsh >/dev/null") != 0) GTEST_SKIP() << "no zsh";
  EXPECT_THAT(Zsh("''", 2, ""), Contains(::testing::StartsWith("train:")));
  EXPECT_THAT(Zsh("ps --", 3, "--"), Contains(::testing::StartsWith("--max-held:")));
  EXPECT_THAT(Zsh("ps --transport ''", 4, ""), ElementsAre("auto", "grpc"));
  EXPECT_THAT(Zsh("train ''", 3, ""), ElementsAre("FILES"));
  EXPECT_THAT(Zsh("run --ps 2 train.py --", 6, "--"), ElementsAre("FILES"));
}

TEST_F(CompletionTest, AnUnknownShellIsRefused) {
  const Finished finished = RunTandem({"completion", "fish"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, ::testing::HasSubstr("{bash,zsh}"));
}

}  // namespace
}  // namespace tandem::cli
