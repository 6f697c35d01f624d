// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/directory_beneath.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ipc {
namespace {

namespace fs = std::filesystem;
using tandem::testing::StatusIs;
using ::testing::HasSubstr;

class DirectoryBeneathTest : public ::testing::TestWithParam<BeneathMethod> {
 protected:
  void SetUp() override {
    if (GetParam() == BeneathMethod::kOpenat2 &&
        !OpenDirectoryBeneath(dir_.path(), dir_.path(), BeneathMethod::kOpenat2).ok()) {
      GTEST_SKIP() << "this kernel or sandbox has no openat2";
    }
    fs::create_directories(root_ + "/job/step-1");
    fs::create_directories(outside_);
    fs::create_directory_symlink(outside_, root_ + "/job/out");
    fs::create_directory_symlink(root_ + "/job", dir_.path() + "/alias");
  }
  std::string Opened(const std::string& root, const std::string& path) {
    const absl::StatusOr<Descriptor> opened = OpenDirectoryBeneath(root, path, GetParam());
    if (!opened.ok()) return opened.status().ToString();
    return fs::read_symlink(absl::StrCat("/proc/self/fd/", opened->get()));
  }

  tandem::testing::TempDir dir_;
  const std::string root_ = fs::canonical(dir_.path()).string() + "/root";
  const std::string outside_ = fs::canonical(dir_.path()).string() + "/outside";
};

TEST_P(DirectoryBeneathTest, OpensWhatLiesBelow) {
  EXPECT_EQ(Opened(root_, root_), root_);
  EXPECT_EQ(Opened(root_, root_ + "/job"), root_ + "/job");
  EXPECT_EQ(Opened(root_, root_ + "/job/../job/./step-1/"), root_ + "/job/step-1");
  EXPECT_EQ(Opened(root_ + "/", root_ + "/job/step-1"), root_ + "/job/step-1");
  EXPECT_EQ(Opened("/", root_), root_);
  // Both spellings of a root that is a symbolic link.
  EXPECT_EQ(Opened(dir_.path() + "/alias", dir_.path() + "/alias/step-1"), root_ + "/job/step-1");
  EXPECT_EQ(Opened(dir_.path() + "/alias", root_ + "/job/step-1"), root_ + "/job/step-1");
}

TEST_P(DirectoryBeneathTest, StartsRelativePathsFromTheWorkingDirectory) {
  const std::string here = fs::current_path();
  EXPECT_EQ(Opened(here, "."), here);
  EXPECT_THAT(Opened(root_, "job"), HasSubstr("PERMISSION_DENIED"));
}

TEST_P(DirectoryBeneathTest, RefusesWhatLeadsOut) {
  for (const std::string& path :
       {outside_, root_ + "/../outside", root_ + "side", std::string("/"), std::string("/etc")}) {
    EXPECT_THAT(OpenDirectoryBeneath(root_, path, GetParam()).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("is not below")))
        << path;
  }
  for (const char* through : {"/job/out", "/job/out/further"}) {
    EXPECT_THAT(OpenDirectoryBeneath(root_, root_ + through, GetParam()).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("symbolic link")))
        << through;
  }
}

TEST_P(DirectoryBeneathTest, AFileIsNoDirectory) {
  std::ofstream(root_ + "/job/file") << "text";
  EXPECT_THAT(OpenDirectoryBeneath(root_, root_ + "/job/file", GetParam()).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/job/file")));
}

TEST_P(DirectoryBeneathTest, NamesWhatDoesNotExist) {
  EXPECT_THAT(OpenDirectoryBeneath(root_, root_ + "/job/step-2", GetParam()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("step-2")));
  EXPECT_THAT(OpenDirectoryBeneath(root_ + "/nowhere", root_ + "/nowhere", GetParam()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("nowhere")));
}

INSTANTIATE_TEST_SUITE_P(Methods, DirectoryBeneathTest,
                         ::testing::Values(BeneathMethod::kAuto, BeneathMethod::kOpenat2,
                                           BeneathMethod::kComponents));

}  // namespace
}  // namespace tandem::ipc
