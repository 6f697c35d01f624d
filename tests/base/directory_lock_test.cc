// SPDX-License-Identifier: Apache-2.0
#include "base/directory_lock.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

TEST(DirectoryLockTest, IsHeldByOneProcessAtATime) {
  const testing::TempDir scratch;
  const std::string directory = absl::StrCat(scratch.path(), "/a/b");
  TANDEM_ASSERT_OK_AND_ASSIGN(auto lock, DirectoryLock::Take(directory, 0));
  EXPECT_THAT(DirectoryLock::Take(directory, 0),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat("process ", ::getpid()))));
  lock.reset();
  TANDEM_EXPECT_OK(DirectoryLock::Take(directory, 0));
}

TEST(DirectoryLockTest, ALinkInTheDirectoryOfSomebodyElseIsNotOverwritten) {
  const testing::TempDir scratch;
  std::ofstream(scratch.File("victim")) << "precious";
  std::filesystem::create_directory(scratch.File("d"));
  std::filesystem::create_symlink(scratch.File("victim"), scratch.File("d/LOCK"));
  EXPECT_THAT(DirectoryLock::Take(scratch.File("d"), 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("d/LOCK is a symbolic link")));
  EXPECT_EQ(*ReadFile(scratch.File("victim")), "precious");
  std::filesystem::remove(scratch.File("d/LOCK"));
  ASSERT_EQ(::mkfifo(scratch.File("d/LOCK").c_str(), 0600), 0);
  EXPECT_THAT(DirectoryLock::Take(scratch.File("d"), 0), StatusIs(absl::StatusCode::kFailedPrecondition));
}

}  // namespace
}  // namespace tandem
