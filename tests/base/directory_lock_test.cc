// SPDX-License-Identifier: Apache-2.0
#include "base/directory_lock.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
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

}  // namespace
}  // namespace tandem
