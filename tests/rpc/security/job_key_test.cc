// SPDX-License-Identifier: Apache-2.0
#include "rpc/security/job_key.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::rpc {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Variables = std::map<std::string, std::string>;

JobKey::Lookup With(const Variables& variables) {
  return [variables](absl::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::make_optional(found->second);
  };
}

class JobKeyTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return absl::StrCat(dir_.path(), "/", name); }
  // Writes a file and sets its mode.
  std::string Write(const std::string& name, const std::string& text, mode_t mode = 0600) {
    std::string path = Path(name);
    std::ofstream(path) << text;
    EXPECT_EQ(::chmod(path.c_str(), mode), 0);
    return path;
  }
  std::string WriteKey(const std::string& name, const JobKey& key, mode_t mode = 0600) {
    return Write(name, absl::StrCat(key.ToText(), "\n"), mode);
  }
  // The variables of a process whose home is a directory of this test.
  Variables Home() const { return {{"HOME", dir_.path()}}; }

  tandem::testing::TempDir dir_;
};

TEST_F(JobKeyTest, AFileNamedByAVariableComesFirstThenTheTextThenTheHome) {
  const JobKey file = JobKey::Make(), text = JobKey::Make(), home = JobKey::Make();
  TANDEM_ASSERT_OK(home.CreateFile(Path(".tandem/key")));
  Variables variables = Home();
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey third, JobKey::Load(With(variables)));
  EXPECT_EQ(third.ToText(), home.ToText());
  EXPECT_EQ(third.source(), Path(".tandem/key"));
  variables["TANDEM_KEY"] = text.ToText();
  variables["TANDEM_KEY_FILE"] = "";  // counts as not set
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey second, JobKey::Load(With(variables)));
  EXPECT_EQ(second.ToText(), text.ToText());
  EXPECT_EQ(second.source(), "TANDEM_KEY");
  variables["TANDEM_KEY_FILE"] = WriteKey("file", file);
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey first, JobKey::Load(With(variables)));
  EXPECT_EQ(first.ToText(), file.ToText());
}

TEST_F(JobKeyTest, TheFirstProcessMakesTheKeyOfTheHomeForItsUserOnly) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey made, JobKey::Load(With(Home())));
  struct stat facts = {};
  ASSERT_EQ(::stat(Path(".tandem/key").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777u, 0600u);
  ASSERT_EQ(::stat(Path(".tandem").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777u, 0700u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey read, JobKey::Load(With(Home())));
  EXPECT_EQ(read.ToText(), made.ToText());
}

TEST_F(JobKeyTest, ProcessesThatMakeTheKeyAtTheSameTimeGetTheSameKey) {
  constexpr int kThreads = 16, kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    const std::string home = Path(absl::StrCat("home", round));
    ASSERT_EQ(::mkdir(home.c_str(), 0700), 0);
    std::vector<std::string> texts(kThreads);
    std::vector<std::thread> threads;
    auto* const start = new absl::Barrier(kThreads);
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        if (start->Block()) delete start;
        const absl::StatusOr<JobKey> key = JobKey::Load(With({{"HOME", home}}));
        texts[i] = key.ok() ? key->ToText() : key.status().ToString();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), 1u) << texts[0];
    TANDEM_EXPECT_OK(JobKey::FromFile(absl::StrCat(home, "/.tandem/key")));
  }
}

TEST_F(JobKeyTest, ACreatedFileReplacesNothing) {
  const JobKey first = JobKey::Make();
  TANDEM_ASSERT_OK(first.CreateFile(Path("key")));
  EXPECT_THAT(JobKey::Make().CreateFile(Path("key")),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("key"))));
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey read, JobKey::FromFile(Path("key")));
  EXPECT_EQ(read.ToText(), first.ToText());
}

TEST_F(JobKeyTest, AHomeWithoutRoomForAKeyIsAnErrorThatSaysWhatToSet) {
  const auto advice =
      AllOf(HasSubstr("TANDEM_KEY_FILE"), HasSubstr("TANDEM_KEY "), HasSubstr("tandem key make"));
  EXPECT_THAT(JobKey::Load(With({{"HOME", Path("missing")}})).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr(Path("missing")), advice)));
  // A file system without room for files, to root as well.
  EXPECT_THAT(JobKey::Load(With({{"HOME", "/proc"}})).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, AllOf(HasSubstr("/proc/.tandem"), advice)));
}

TEST_F(JobKeyTest, AFileThatOthersHaveAccessToIsRefusedWithTheCommandThatHelps) {
  for (const mode_t mode : {0640u, 0604u, 0620u, 0602u, 0610u, 0601u, 0644u, 0666u, 0777u}) {
    const std::string path = WriteKey(absl::StrCat("mode", mode), JobKey::Make(), mode);
    EXPECT_THAT(JobKey::FromFile(path).status(),
                StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(absl::StrCat("chmod 600 ", path))));
  }
  for (const mode_t mode : {0400u, 0600u, 0700u}) {
    TANDEM_EXPECT_OK(JobKey::FromFile(WriteKey(absl::StrCat("mode", mode), JobKey::Make(), mode)));
  }
  // So is that of the home, which is not replaced.
  ASSERT_EQ(::mkdir(Path(".tandem").c_str(), 0700), 0);
  const JobKey key = JobKey::Make();
  WriteKey(".tandem/key", key, 0644);
  EXPECT_THAT(JobKey::Load(With(Home())).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600 ")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFile(Path(".tandem/key")));
  EXPECT_EQ(text, absl::StrCat(key.ToText(), "\n"));
}

TEST_F(JobKeyTest, AFileOfAnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const std::string path = WriteKey("key", JobKey::Make());
  ASSERT_EQ(::chown(path.c_str(), 12345, ::getegid()), 0);
  EXPECT_THAT(JobKey::FromFile(path).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, AllOf(HasSubstr(path), HasSubstr("user 12345"))));
}

TEST_F(JobKeyTest, ALinkIsFollowedIfItsTargetIsAsItMustBe) {
  const JobKey key = JobKey::Make();
  const std::string target = WriteKey("target", key), link = Path("link");
  ASSERT_EQ(::symlink(target.c_str(), link.c_str()), 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey read, JobKey::FromFile(link));
  EXPECT_EQ(read.ToText(), key.ToText());
  ASSERT_EQ(::chmod(target.c_str(), 0640), 0);
  EXPECT_THAT(JobKey::FromFile(link).status(),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("chmod 600")));
  // A link of the home that leads nowhere is an error; nothing is made at its target.
  ASSERT_EQ(::mkdir(Path(".tandem").c_str(), 0700), 0);
  ASSERT_EQ(::symlink(Path("nowhere").c_str(), Path(".tandem/key").c_str()), 0);
  EXPECT_THAT(JobKey::Load(With(Home())).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path(".tandem/key"))));
  EXPECT_NE(::access(Path("nowhere").c_str(), F_OK), 0);
}

TEST_F(JobKeyTest, AFileThatIsNoKeyIsNamedAndNotRepeated) {
  const std::string good = JobKey::Make().ToText();
  const std::vector<std::string> wrong = {"",
                                          "\n",
                                          "hunter2-hunter2",
                                          good.substr(11),
                                          good.substr(0, good.size() - 1),
                                          good + "0",
                                          "tandem_key_" + std::string(64, 'g'),
                                          good + "\n" + good,
                                          std::string("\0", 1) + good,
                                          std::string(1 << 20, 'a'),
                                          "-----BEGIN OPENSSH PRIVATE KEY-----\nsecretsecret\n"};
  for (const std::string& text : wrong) {
    EXPECT_THAT(
        JobKey::FromFile(Write("wrong", text)).status(),
        StatusIs(absl::StatusCode::kInvalidArgument,
                 AllOf(HasSubstr(Path("wrong")), HasSubstr("tandem key make"), Not(HasSubstr("hunter2")),
                       Not(HasSubstr("secretsecret")), Not(HasSubstr(good.substr(20, 20))))))
        << text.substr(0, 100);
  }
  EXPECT_THAT(JobKey::Load(With({{"TANDEM_KEY", "hunter2"}})).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("TANDEM_KEY"), Not(HasSubstr("hunter2")))));
  EXPECT_THAT(JobKey::FromFile(Path("missing")).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("tandem key make --key-file")));
  EXPECT_THAT(JobKey::FromFile(dir_.path()).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(JobKeyTest, APipeIsRefusedWithoutWaitingForAWriter) {
  ASSERT_EQ(::mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(JobKey::FromFile(Path("pipe")).status(), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(JobKeyTest, BlanksAroundTheTextAreNoPartOfIt) {
  const JobKey key = JobKey::Make();
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey read,
                              JobKey::FromText(absl::StrCat("  ", key.ToText(), "\r\n\n"), "x"));
  EXPECT_EQ(read.Token(), key.Token());
}

TEST_F(JobKeyTest, EachPurposeAndEachJobHasBytesOfItsOwn) {
  const JobKey key = JobKey::Make();
  std::set<std::string> all = {key.ToText(), key.Token(), key.Derive("ca", 32), key.Derive("job", 32)};
  for (const char* const run_id : {"", "a", "b", "ab", "token", "1:a"}) {
    all.insert(key.ForJob(run_id).Token());
    all.insert(key.ForJob(run_id).ToText());
    all.insert(key.Derive(run_id, 32));
  }
  all.insert(key.ForJob("a").ForJob("b").Token());
  EXPECT_EQ(all.size(), 4u + 3 * 6 - 1 + 1);  // Derive("token") is Token()
  EXPECT_EQ(key.ForJob("a").Token(), key.ForJob("a").Token());
  EXPECT_EQ(key.Token().size(), JobKey::kBytes);
  EXPECT_NE(JobKey::Make().Token(), JobKey::Make().Token());
}

// All processes of a job must compute the same bytes, whatever their version.
TEST_F(JobKeyTest, DerivedBytesStayTheSame) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const JobKey key,
                              JobKey::FromText("tandem_key_" + std::string(64, '0'), "test"));
  EXPECT_EQ(key.Id(), "d6539bbe43");
  EXPECT_EQ(key.ForJob("job7").Id(), "ef6e475c0e");
}

TEST_F(JobKeyTest, TheIdTellsKeysApartAndShowsNoByteOfTheToken) {
  const JobKey key = JobKey::Make();
  EXPECT_EQ(key.Id().size(), 10u);
  EXPECT_NE(key.Id(), JobKey::Make().Id());
  EXPECT_THAT(key.ToText(), Not(HasSubstr(key.Id())));
}

}  // namespace
}  // namespace tandem::rpc
