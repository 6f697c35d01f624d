// SPDX-License-Identifier: Apache-2.0
#include "ps/checkpoint/replace_directory.h"

#include <cerrno>
#include <filesystem>
#include <fstream>

#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::HasSubstr;

class ReplaceDirectoryTest : public ::testing::Test {
 protected:
  ReplaceDirectoryTest() {
    // A file system without RENAME_EXCHANGE.
    moves_.exchange = [](const char*, const char*) {
      errno = EINVAL;
      return -1;
    };
    // The rename number fail_at_, from 1, fails.
    moves_.rename = [this, system = DirectoryMoves().rename](const char* from, const char* to) {
      if (++renames_ != fail_at_) return system(from, to);
      errno = EIO;
      return -1;
    };
    Make("new");
    Make("step-1");
  }
  void Make(const std::string& name) {
    std::filesystem::create_directory(dir_.File(name));
    std::ofstream(dir_.File(name) + "/file") << name;
  }
  // Returns what Make wrote into the directory that now has this name; empty if there is none.
  std::string Origin(const std::string& name) { return ReadFile(dir_.File(name) + "/file").value_or(""); }
  absl::StatusOr<std::string> Replace() {
    return ReplaceDirectory(dir_.File("new"), dir_.File("step-1"), moves_);
  }

  const TempDir dir_;
  DirectoryMoves moves_;
  int renames_ = 0;
  int fail_at_ = 0;
};

TEST_F(ReplaceDirectoryTest, WithoutExchangeTheReplacedOneIsBeside) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string replaced, Replace());
  EXPECT_EQ(replaced, dir_.File("replaced-step-1"));
  EXPECT_EQ(Origin("step-1"), "new");
  EXPECT_EQ(Origin("replaced-step-1"), "step-1");
  TANDEM_ASSERT_OK(FinishReplacements(dir_.path()));
  EXPECT_EQ(Origin("step-1"), "new");
  EXPECT_FALSE(std::filesystem::exists(replaced));
}

TEST_F(ReplaceDirectoryTest, AFailedRenameLeavesBothWhereTheyWere) {
  for (int fail_at : {2, 3}) {  // moving the old one aside, moving the new one into place
    renames_ = 0;
    fail_at_ = fail_at;
    EXPECT_THAT(Replace(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("step-1"))) << fail_at;
    EXPECT_EQ(Origin("step-1"), "step-1") << fail_at;
    EXPECT_EQ(Origin("new"), "new") << fail_at;
  }
}

TEST_F(ReplaceDirectoryTest, ACrashBetweenTheRenamesIsRepaired) {
  std::filesystem::rename(dir_.File("step-1"), dir_.File("replaced-step-1"));
  TANDEM_ASSERT_OK(FinishReplacements(dir_.path()));
  EXPECT_EQ(Origin("step-1"), "step-1");
  TANDEM_EXPECT_OK(FinishReplacements(dir_.File("nowhere")));
}

TEST_F(ReplaceDirectoryTest, DirectoriesOfOthersStay) {
  for (const std::string name :
       {"replaced-notes", "replaced-", "replaced-step-", "replaced-step-1b", "notes"}) {
    Make(name);
  }
  TANDEM_ASSERT_OK(FinishReplacements(dir_.path()));
  for (const std::string name :
       {"replaced-notes", "replaced-", "replaced-step-", "replaced-step-1b", "notes"}) {
    EXPECT_EQ(Origin(name), name);
  }
}

TEST_F(ReplaceDirectoryTest, IsAtomicWhereTheFileSystemCanExchange) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string replaced,
                              ReplaceDirectory(dir_.File("new"), dir_.File("step-1")));
  EXPECT_EQ(Origin("step-1"), "new");
  EXPECT_EQ(ReadFile(replaced + "/file").value_or(""), "step-1");
}

}  // namespace
}  // namespace tandem::ps
