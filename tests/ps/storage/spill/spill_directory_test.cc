// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/spill/spill_directory.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SpillDirectoryTest, IsMadeAndRemovedWithWhatIsInIt) {
  TempDir dir;
  const std::string path = dir.File("a/b/spill");
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto claimed, SpillDirectory::Claim(path));
    std::filesystem::create_directories(claimed->rows_path());
    std::ofstream(claimed->rows_path() + "/file") << "rows";
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SpillDirectoryTest, FilesOfOthersStay) {
  TempDir dir;
  std::ofstream(dir.File("notes")) << "mine";
  { TANDEM_ASSERT_OK(SpillDirectory::Claim(dir.path())); }
  EXPECT_TRUE(std::filesystem::exists(dir.File("notes")));
  EXPECT_FALSE(std::filesystem::exists(dir.File("tandem.lock")));
}

TEST(SpillDirectoryTest, ASecondServerIsRefusedByTheNameOfTheFirst) {
  TempDir dir;
  const std::string path = dir.File("spill");
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, SpillDirectory::Claim(path));
    std::filesystem::create_directories(first->rows_path());
    EXPECT_THAT(SpillDirectory::Claim(path),
                StatusIs(absl::StatusCode::kAlreadyExists,
                         AllOf(HasSubstr(path), HasSubstr(absl::StrCat("process ", ::getpid())))));
    EXPECT_TRUE(std::filesystem::exists(first->rows_path()));  // the first one's rows are left alone
  }
  TANDEM_EXPECT_OK(SpillDirectory::Claim(path));
}

TEST(SpillDirectoryTest, WhatAKilledProcessLeftIsRemoved) {
  TempDir dir;
  const std::string path = dir.File("spill");
  const pid_t child = ::fork();
  if (child == 0) {
    const auto claimed = SpillDirectory::Claim(path);
    std::filesystem::create_directories(path + "/rows");
    std::ofstream(path + "/rows/old") << "rows of the dead";
    ::raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(std::filesystem::exists(path + "/rows/old"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto claimed, SpillDirectory::Claim(path));
  EXPECT_FALSE(std::filesystem::exists(path + "/rows"));
}

TEST(SpillDirectoryTest, OneThatCannotBeMadeIsNamed) {
  TempDir dir;
  std::ofstream(dir.File("file")) << "no directory";
  const absl::Status status = SpillDirectory::Claim(dir.File("file/spill")).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir.File("file/spill")));
}

}  // namespace
}  // namespace tandem::ps
