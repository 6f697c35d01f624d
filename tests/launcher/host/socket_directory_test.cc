// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/socket_directory.h"

#include <sys/stat.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

// A parent of socket directories that belongs to a test.
class SocketDirectoryTest : public ::testing::Test {
 protected:
  SocketDirectoryTest() {
    std::string path = "/tmp/td_XXXXXX";
    parent_ = mkdtemp(path.data());
    setenv("XDG_RUNTIME_DIR", parent_.c_str(), 1);
  }
  ~SocketDirectoryTest() override {
    unsetenv("XDG_RUNTIME_DIR");
    std::filesystem::remove_all(parent_);
  }
  // Makes a directory look as if it were an hour old.
  static void Age(const std::string& path) {
    timeval hour_ago[2] = {};
    gettimeofday(&hour_ago[0], nullptr);
    hour_ago[0].tv_sec -= 3600;
    hour_ago[1] = hour_ago[0];
    ASSERT_EQ(utimes(path.c_str(), hour_ago), 0);
  }
  std::string parent_;
};

TEST_F(SocketDirectoryTest, OnlyThisUserCanEnterIt) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto directory, SocketDirectory::Make());
  struct stat about {};
  ASSERT_EQ(stat(directory->path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700);
  EXPECT_TRUE(absl::StartsWith(directory->path(), parent_ + "/"));
  EXPECT_EQ(directory->Address("store-0"), "unix:" + directory->path() + "/store-0");
}

TEST_F(SocketDirectoryTest, ItIsRemovedWithItsContent) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto directory, SocketDirectory::Make());
  const std::string path = directory->path();
  std::filesystem::create_directory(path + "/left");
  directory = nullptr;
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(SocketDirectoryTest, ThatOfAKilledLauncherIsRemovedAndThatOfALivingOneIsNot) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto living, SocketDirectory::Make());
  Age(living->path());
  const std::string killed = parent_ + "/tandem-sockets-abcdef", young = parent_ + "/tandem-sockets-ghijkl";
  const std::string other = parent_ + "/other";
  for (const std::string& path : {killed, young, other}) std::filesystem::create_directory(path);
  Age(killed);
  Age(other);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto next, SocketDirectory::Make());
  EXPECT_FALSE(std::filesystem::exists(killed));
  EXPECT_TRUE(std::filesystem::exists(living->path()));
  EXPECT_TRUE(std::filesystem::exists(young)) << "its launcher may be about to lock it";
  EXPECT_TRUE(std::filesystem::exists(other));
}

TEST_F(SocketDirectoryTest, ALongRuntimeDirectoryIsNotUsed) {
  const testing::TempDir scratch;
  const std::string longer = scratch.path() + "/a-directory-with-a-name-too-long-for-sockets-in-it";
  std::filesystem::create_directory(longer);
  setenv("XDG_RUNTIME_DIR", longer.c_str(), 1);
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto directory, SocketDirectory::Make());
  EXPECT_TRUE(absl::StartsWith(directory->path(), "/tmp/"));
}

}  // namespace
}  // namespace tandem::launcher
