// SPDX-License-Identifier: Apache-2.0
#include "launcher/job_file.h"

#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

TEST(JobFileTest, AReaderSeesAWholeFileWhileItIsRewritten) {
  const testing::TempDir directory;
  const std::string path = directory.File(kJobFile);
  const auto job = [](int i) {
    return JobAddress{.store = absl::StrCat("host:", i), .run_id = std::string(i % 2 == 0 ? 10 : 20000, 'x')};
  };
  TANDEM_ASSERT_OK(WriteJobFile(directory.path(), job(0)));
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (int i = 0; i < 300; ++i) TANDEM_EXPECT_OK(WriteJobFile(directory.path(), job(i)));
    done = true;
  });
  while (!done) TANDEM_EXPECT_OK(ReadJobFile(path).status());
  writer.join();
  EXPECT_EQ(ReadJobFile(path)->store, "host:299");
  int files = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(directory.path())) ++files;
  EXPECT_EQ(files, 1);
}

TEST(JobFileTest, OnlyTheUserOfTheJobCanReadItsKey) {
  const testing::TempDir directory;
  const rpc::JobKey key = rpc::JobKey::Make(), later = rpc::JobKey::Make();
  const std::string runs = directory.File("runs/7");
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, WriteKeyFile(runs, key));
  EXPECT_EQ(path, directory.File("runs/7/key"));
  TANDEM_ASSERT_OK(WriteKeyFile(runs, later).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey read, rpc::JobKey::FromFile(path));  // checks the mode
  EXPECT_EQ(read.Token(), later.Token());
  TANDEM_ASSERT_OK(WriteJobFile(runs, {.store = "host:1", .key_file = path}));
  EXPECT_EQ(ReadJobFile(absl::StrCat(runs, "/", kJobFile))->key_file, path);
  // A directory of several jobs has a link to the key of the last one.
  TANDEM_ASSERT_OK(WriteJobFile(directory.path(), {.store = "host:1"}));
  EXPECT_EQ(ReadJobFile(directory.File(kJobFile))->key_file, "");
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string last, WriteKeyFile(directory.File("runs/8"), key));
  for (const std::string& one : {path, last}) {
    TANDEM_ASSERT_OK(WriteJobFile(directory.path(), {.store = "host:1", .key_file = one}));
  }
  EXPECT_EQ(ReadJobFile(directory.File(kJobFile))->key_file, directory.File("key"));
  EXPECT_EQ(rpc::JobKey::FromFile(directory.File("key"))->Token(), key.Token());
}

TEST(JobFileTest, LaunchersThatShareADirectoryWriteAtTheSameTime) {
  const testing::TempDir directory;
  const JobAddress job = {.store = "host:1",
                          .key_file = *WriteKeyFile(directory.File("7"), rpc::JobKey::Make())};
  TANDEM_ASSERT_OK(WriteJobFile(directory.path(), job));
  std::atomic<int> writing{3};
  std::vector<std::thread> launchers;
  for (int i = writing; i > 0; --i) {
    launchers.emplace_back([&] {
      for (int round = 0; round < 60; ++round) TANDEM_EXPECT_OK(WriteJobFile(directory.path(), job));
      --writing;
    });
  }
  while (writing > 0) {
    const absl::StatusOr<JobAddress> read = ReadJobFile(directory.File(kJobFile));
    TANDEM_EXPECT_OK(read.status());
    if (read.ok()) {
      EXPECT_EQ(read->key_file, directory.File("key"));
    }
  }
  for (std::thread& launcher : launchers) launcher.join();
}

TEST(JobFileTest, AFileThatCannotBeWrittenIsNamed) {
  const testing::TempDir directory;
  EXPECT_THAT(WriteJobFile(directory.File("none"), {}),
              testing::StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("none/job.json")));
}

}  // namespace
}  // namespace tandem::launcher
