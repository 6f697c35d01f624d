// SPDX-License-Identifier: Apache-2.0
#include "launcher/log_directories.h"

#include <fcntl.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "base/ipc/descriptor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

class LogDirectories : public ::testing::Test {
 protected:
  // Makes the log directory of a server, with a log file in it.
  std::string Make(const std::string& name) {
    const std::string directory = dir_.File(absl::StrCat("wal/", name));
    fs::create_directories(directory);
    std::ofstream(absl::StrCat(directory, "/log-1")) << "records";
    std::ofstream(absl::StrCat(directory, "/LOCK")) << "4711\n";
    return directory;
  }
  // Uses the directory as a running server does.
  static ipc::Descriptor Lock(const std::string& directory) {
    ipc::Descriptor file(::open(absl::StrCat(directory, "/LOCK").c_str(), O_RDWR | O_CLOEXEC));
    EXPECT_EQ(::flock(file.get(), LOCK_EX | LOCK_NB), 0);
    return file;
  }
  bool Exists(const std::string& name) const { return fs::exists(dir_.File(name)); }

  const testing::TempDir dir_;
};

TEST_F(LogDirectories, OnlyThoseOfTheRunAreRemoved) {
  Make("exp-1/ps-0");
  Make("exp-12/ps-0.old");
  Make("exp-b-1/ps-0");
  Make("exp-1x/ps-0");
  Make("expo-1/ps-0");
  RemoveLogs(dir_.File("wal"), "exp");
  EXPECT_FALSE(Exists("wal/exp-1"));
  EXPECT_FALSE(Exists("wal/exp-12"));
  EXPECT_TRUE(Exists("wal/exp-b-1/ps-0/log-1"));
  EXPECT_TRUE(Exists("wal/exp-1x/ps-0/log-1"));
  EXPECT_TRUE(Exists("wal/expo-1/ps-0/log-1"));
  RemoveLogs(dir_.File("wal"), "exp-b");
  RemoveLogs(dir_.File("wal"), "expo");
  fs::remove_all(dir_.File("wal/exp-1x"));
  RemoveLogs(dir_.File("wal"), "exp");
  EXPECT_FALSE(Exists("wal"));
  RemoveLogs(dir_.File("nowhere"), "exp");
}

TEST_F(LogDirectories, ALogInUseIsNeitherRemovedNorSetAside) {
  const std::string used = Make("none-1/ps-0");
  Make("none-1/ps-1");
  {
    const ipc::Descriptor lock = Lock(used);
    RemoveLogs(dir_.File("wal"), "none");
    EXPECT_TRUE(Exists("wal/none-1/ps-0/log-1"));
    EXPECT_FALSE(Exists("wal/none-1/ps-1"));
    EXPECT_THAT(SetLogAside(used),
                StatusIs(absl::StatusCode::kUnavailable,
                         AllOf(HasSubstr(used), HasSubstr("4711"), HasSubstr("--rdzv-id"))));
    EXPECT_TRUE(Exists("wal/none-1/ps-0/log-1"));
  }
  TANDEM_EXPECT_OK(SetLogAside(used));
  EXPECT_FALSE(Exists("wal/none-1/ps-0"));
  EXPECT_TRUE(Exists("wal/none-1/ps-0.old/log-1"));
}

TEST_F(LogDirectories, SettingAsideReplacesTheOneBeforeAndSaysWhenItCannot) {
  const std::string directory = Make("run-1/ps-0");
  Make("run-1/ps-0.old/deeper");
  TANDEM_EXPECT_OK(SetLogAside(directory));
  EXPECT_TRUE(Exists("wal/run-1/ps-0.old/log-1"));
  EXPECT_FALSE(Exists("wal/run-1/ps-0.old/deeper"));
  TANDEM_EXPECT_OK(SetLogAside(directory));  // there is nothing to set aside
  const std::string longest = Make(absl::StrCat("run-1/", std::string(253, 'x')));  // "....old" is too long
  EXPECT_THAT(SetLogAside(longest).message(), AllOf(HasSubstr(longest), HasSubstr("--wal-dir")));
  EXPECT_TRUE(fs::exists(longest));
}

TEST_F(LogDirectories, AServerHasServedOnceItSaysSo) {
  const std::string directory = Make("run-1/ps-0");
  EXPECT_FALSE(HasServed(directory, 12));
  std::ofstream(ServingFile(directory)) << "12\n";
  EXPECT_TRUE(HasServed(directory, 12));
  EXPECT_FALSE(HasServed(directory, 13));  // that one died while it replayed its log
  EXPECT_FALSE(HasServed(dir_.File("nowhere"), 12));
}

}  // namespace
}  // namespace tandem::launcher
