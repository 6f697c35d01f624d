// SPDX-License-Identifier: Apache-2.0
#include "base/read_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using testing::StatusIs;

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

TEST(ReadFile, GivesEveryByteThatWasWritten) {
  const testing::TempDir dir;
  std::string bytes;
  for (int i = 0; i < 300'000; ++i) bytes += static_cast<char>(i % 251);  // more than is read at once
  for (const std::string& text :
       {std::string(), std::string("one line\r\n"), std::string("\0\0", 2), bytes}) {
    Write(dir.File("f"), text);
    EXPECT_EQ(ReadFile(dir.File("f")).value(), text);
  }
}

TEST(ReadFile, DoesNotBelieveTheSizeThatAFileSaysItHas) {
  struct stat info;
  ASSERT_EQ(::stat("/proc/self/status", &info), 0);
  ASSERT_EQ(info.st_size, 0);
  EXPECT_THAT(ReadFile("/proc/self/status").value(), AllOf(StartsWith("Name:"), HasSubstr("\nVmRSS:")));
}

TEST(ReadFile, ReadsAPipeUntilItsWriterIsDone) {
  const testing::TempDir dir;
  const std::string path = dir.File("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const std::string text(200'000, 'x');
  std::thread writer([&] { Write(path, text); });
  EXPECT_EQ(ReadFile(path).value(), text);
  writer.join();
}

TEST(ReadFile, NamesAFileThatIsNotThere) {
  const testing::TempDir dir;
  EXPECT_THAT(ReadFile(dir.File("none")),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("'" + dir.File("none") + "'"),
                                                          HasSubstr("No such file or directory"))));
}

TEST(ReadFile, ADirectoryIsNoEmptyFile) {
  const testing::TempDir dir;
  EXPECT_THAT(ReadFile(dir.path()), StatusIs(absl::StatusCode::kInvalidArgument,
                                             AllOf(HasSubstr(dir.path()), HasSubstr("is a directory"))));
}

TEST(ReadFile, AFileThatMayNotBeReadSaysSo) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read everything";
  const testing::TempDir dir;
  Write(dir.File("f"), "secret");
  ASSERT_EQ(::chmod(dir.File("f").c_str(), 0), 0);
  EXPECT_THAT(ReadFile(dir.File("f")),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("Permission denied")));
}

// As /proc/PID/stat does when the process dies between opening and reading.
TEST(ReadFile, SaysWhenReadingFailsThoughOpeningDidNot) {
  const absl::StatusOr<std::string> text = ReadFile("/proc/self/mem");
  ASSERT_FALSE(text.ok());
  EXPECT_THAT(text.status().message(), HasSubstr("cannot read '/proc/self/mem'"));
}

TEST(ReadFile, TakesAsManyBytesAsAreAllowedAndNoMore) {
  const testing::TempDir dir;
  Write(dir.File("f"), std::string(100'000, 'x'));
  EXPECT_EQ(ReadFile(dir.File("f"), 100'000).value(), std::string(100'000, 'x'));
  EXPECT_THAT(ReadFile(dir.File("f"), 99'999),
              StatusIs(absl::StatusCode::kOutOfRange,
                       AllOf(HasSubstr(dir.File("f")), HasSubstr("larger than 99999 bytes"))));
  EXPECT_THAT(ReadFile("/dev/zero", 10), StatusIs(absl::StatusCode::kOutOfRange));  // this file has no end
}

}  // namespace
}  // namespace tandem
