// SPDX-License-Identifier: Apache-2.0
// tandem key.

#include <sys/stat.h>

#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/security/job_key.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunTandem;

TEST(KeyTest, MakeWritesAFileWhoseIdShowPrintsAndNotItsKey) {
  const testing::TempDir dir;
  const std::string path = absl::StrCat(dir.path(), "/job.key");
  const Finished made = RunTandem({"key", "make", "--key-file", path});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey key, rpc::JobKey::FromFile(path));
  EXPECT_EQ(made.out, absl::StrCat("key ", key.Id(), " in ", path, "\n"));
  EXPECT_EQ(RunTandem({"key", "show", "--key-file", path}).out, made.out);
  EXPECT_EQ(RunTandem({"key", "show"}, {{"TANDEM_KEY_FILE", path}}).out, made.out);
  EXPECT_THAT(made.out, Not(HasSubstr(key.ToText())));
  const Finished again = RunTandem({"key", "make", "--key-file", path});
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("remove the file first"));
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey kept, rpc::JobKey::FromFile(path));
  EXPECT_EQ(kept.Id(), key.Id());
}

TEST(KeyTest, WithoutAFileTheKeyIsThatOfTheHome) {
  const testing::TempDir dir;
  const std::map<std::string, std::string> home = {
      {"HOME", dir.path()}, {"TANDEM_KEY_FILE", ""}, {"TANDEM_KEY", ""}};
  const Finished shown = RunTandem({"key", "show"}, home);
  EXPECT_EQ(shown.exit_code, 0) << shown.err;
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey key,
                              rpc::JobKey::FromFile(absl::StrCat(dir.path(), "/.tandem/key")));
  EXPECT_THAT(shown.out, HasSubstr(key.Id()));
  EXPECT_EQ(RunTandem({"key", "make"}, home).exit_code, 1);
}

// A server beside a job needs the key of the job's processes.
TEST(KeyTest, TheKeyOfAJobCanBeMadeBeforeTheJobStarts) {
  const testing::TempDir dir;
  const std::string path = absl::StrCat(dir.path(), "/job.key"), logs = absl::StrCat(dir.path(), "/logs");
  const Finished made = RunTandem({"key", "make", "--job", "train7", "--key-file", path});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  const Finished job = RunTandem({"run", "--rdzv-id", "train7", "--log-dir", logs, "--", "/bin/sh", "-c",
                                  "cat $TANDEM_KEY_FILE; echo text=$TANDEM_KEY"});
  EXPECT_EQ(job.exit_code, 0) << job.err;
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey key, rpc::JobKey::FromFile(path));
  EXPECT_THAT(job.out, ::testing::AllOf(HasSubstr(key.ToText()), HasSubstr("text=\n")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const rpc::JobKey logged, rpc::JobKey::FromFile(logs + "/key"));
  EXPECT_EQ(logged.Id(), key.Id());
  EXPECT_EQ(RunTandem({"key", "make", "--job", "train7"}).exit_code, 2);
}

TEST(KeyTest, AFileThatOthersCanReadIsRefused) {
  const testing::TempDir dir;
  const std::string path = absl::StrCat(dir.path(), "/key");
  TANDEM_ASSERT_OK(rpc::JobKey::Make().CreateFile(path));
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  const Finished shown = RunTandem({"key", "show"}, {{"TANDEM_KEY_FILE", path}});
  EXPECT_EQ(shown.exit_code, 1);
  EXPECT_THAT(shown.err, HasSubstr(absl::StrCat("chmod 600 ", path)));
}

}  // namespace
}  // namespace tandem::cli
