// SPDX-License-Identifier: Apache-2.0
#include "base/open_beneath.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

class OpenBeneathTest : public ::testing::TestWithParam<BeneathMethod> {
 protected:
  void SetUp() override {
    fs::create_directories(root_ + "/job/step-1");
    fs::create_directories(outside_);
    fs::create_directory_symlink(outside_, root_ + "/job/out");
    fs::create_directory_symlink(root_ + "/job", dir_.path() + "/alias");
  }
  // Returns the content of a short file.
  std::string Content(const std::string& directory, const std::string& name) {
    const absl::StatusOr<int> opened = OpenFileBeneath(directory, name, GetParam());
    if (!opened.ok()) return opened.status().ToString();
    char text[16];
    const ssize_t size = ::read(*opened, text, sizeof(text));
    ::close(*opened);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

  testing::TempDir dir_;
  const std::string root_ = fs::canonical(dir_.path()).string() + "/root";
  const std::string outside_ = fs::canonical(dir_.path()).string() + "/outside";
};

TEST_P(OpenBeneathTest, OpensFilesThatLieBelow) {
  std::ofstream(root_ + "/job/step-1/file") << "text";
  for (const char* name : {"file", "./file", "../step-1/file"}) {
    const bool up = std::string(name).starts_with("..");
    const absl::StatusOr<int> opened = OpenFileBeneath(root_ + "/job/step-1", name, GetParam());
    EXPECT_EQ(opened.ok(), !up) << name;
    if (opened.ok()) {
      EXPECT_EQ(fs::read_symlink(absl::StrCat("/proc/self/fd/", *opened)), root_ + "/job/step-1/file");
      ::close(*opened);
    }
  }
  EXPECT_EQ(Content(root_, "job/step-1/file"), "text");
  // The directory itself is the caller's choice.
  EXPECT_EQ(Content(dir_.path() + "/alias", "step-1/file"), "text");
  EXPECT_THAT(OpenFileBeneath(root_, "job/none", GetParam()).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(root_ + "/job/none")));
}

TEST_P(OpenBeneathTest, NoLinkAndNoNameLeadsToAFileOutside) {
  std::ofstream(outside_ + "/secret") << "text";
  fs::create_symlink(outside_ + "/secret", root_ + "/absolute");
  fs::create_symlink("../outside/secret", root_ + "/relative");
  for (const std::string& name :
       {std::string("absolute"), std::string("relative"), std::string("job/out/secret"), outside_ + "/secret",
        std::string("../outside/secret"), std::string("job/../../outside/secret"), std::string()}) {
    EXPECT_THAT(OpenFileBeneath(root_, name, GetParam()).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("out of the directory")))
        << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, OpenBeneathTest,
                         ::testing::Values(BeneathMethod::kAuto, BeneathMethod::kComponents));

}  // namespace
}  // namespace tandem
