// SPDX-License-Identifier: Apache-2.0
// A job whose primaries are killed goes on, and ends as an undisturbed one.

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using testing::kTestTimeout;
using testing::TandemProcess;

constexpr int kShards = 2;

// The number of primaries that are killed. TANDEM_FAILOVER_JOB_KILLS=50 is the long form.
int Kills() {
  const char* const text = std::getenv("TANDEM_FAILOVER_JOB_KILLS");
  return text == nullptr ? 4 : std::atoi(text);
}

// Returns whether the process has the socket "socket:[INODE]".
bool HasSocket(pid_t pid, const std::string& socket) {
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  DIR* const directory = ::opendir(folder.c_str());
  if (directory == nullptr) return false;
  bool found = false;
  while (const dirent* const entry = ::readdir(directory)) {
    char target[64];
    const ssize_t size = ::readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    found = found || (size > 0 && socket == std::string(target, static_cast<size_t>(size)));
  }
  ::closedir(directory);
  return found;
}

// Returns the process of the job that listens at "127.0.0.1:PORT", or 0.
pid_t ProcessAt(const JobDir& job, const std::string& address) {
  int port = 0;
  if (!absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) return 0;
  const std::string local = absl::StrFormat(":%04X", port);
  const std::string sockets =
      absl::StrCat(testing::ReadFile("/proc/net/tcp"), testing::ReadFile("/proc/net/tcp6"));
  for (const std::string& line : testing::Lines(sockets)) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    constexpr char kListens[] = "0A";
    if (words.size() < 10 || !absl::EndsWith(words[1], local) || words[3] != kListens) continue;
    for (const pid_t pid :
         testing::ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", job.Mark().at("TANDEM_TEST_MARK")))) {
      if (HasSocket(pid, absl::StrCat("socket:[", words[9], "]"))) return pid;
    }
  }
  return 0;
}

// Returns the seconds since the process was started; 0 if it does not exist.
double Age(pid_t pid) {
  const std::string stat = testing::ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const std::vector<std::string> words =
      absl::StrSplit(stat.substr(stat.rfind(')') + 1), ' ', absl::SkipEmpty());
  const std::vector<std::string> uptime = absl::StrSplit(testing::ReadFile("/proc/uptime"), ' ');
  double now = 0, started = 0;
  constexpr size_t kStartTime = 19;  // of the words behind the name
  if (words.size() <= kStartTime || !absl::SimpleAtod(uptime[0], &now) ||
      !absl::SimpleAtod(words[kStartTime], &started)) {
    return 0;
  }
  return now - started / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Waits until the shard has a primary with a follower in sync, whose process has lived `life` seconds.
// Returns the process; 0 if the job ended first, or after kTestTimeout.
pid_t AwaitPrimary(const JobDir& job, int shard, double life) {
  const absl::Time deadline = absl::Now() + kTestTimeout;
  while (absl::Now() < deadline && job.ProcessWith("TANDEM_ROLE=worker") != 0) {
    const Finished shown = job.Run({"ps", "status", "--json", "--job", "logs"});
    const Json all = ParseJson(shown.out);
    if (all.is_discarded() || !all.contains("shards")) continue;
    for (const Json& one : all.at("shards")) {
      if (one.at("shard") != shard || one.at("state") != "ok") continue;
      const pid_t pid = ProcessAt(job, one.at("placement").at("primary").at("address"));
      if (pid != 0 && Age(pid) >= life) return pid;
    }
  }
  return 0;
}

// Waits until the servers write a checkpoint, so that a server may be killed while it does. Returns false if
// the job ended first.
bool AwaitSave(const JobDir& job) {
  const absl::Time deadline = absl::Now() + kTestTimeout;
  while (absl::Now() < deadline && job.ProcessWith("TANDEM_ROLE=worker") != 0) {
    std::error_code error;
    for (std::filesystem::directory_iterator it(job.File("ckpt"), error), end; !error && it != end;
         it.increment(error)) {
      if (absl::StartsWith(it->path().filename().string(), "unfinished-")) return true;
    }
  }
  return false;
}

TEST(FailoverTest, ASyncJobWhosePrimariesAreKilledEndsWithTheBitsOfAnUndisturbedOne) {
  const int wanted = Kills();
  const JobDir job(20000);
  const int epochs = 10 + 3 * wanted;
  const Args length = {"--no-baselines",
                       "--set",
                       "train.batch_size=32",
                       "--set",
                       absl::StrCat("train.epochs=", epochs),
                       "--set",
                       absl::StrCat("checkpoint.keep=", epochs)};
  Args undisturbed = length;
  undisturbed.insert(undisturbed.end(), {"--set", "checkpoint.dir=undisturbed"});
  ASSERT_EQ(job.Train(kShards, 2, undisturbed).exit_code, 0);

  Args more = length;
  more.insert(more.end(), {"--set", "ps.durability=follower"});
  Args args = job.LaunchArgs(kShards, 2, more);
  args.insert(args.begin() + 1, {"--ps-followers", "1"});
  TandemProcess launched(args, job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/")) << launched.out() << launched.err();
  // Each of the four processes dies at most once, or it lives long enough to be started again without a
  // pause.
  const double life = wanted > 4 ? 2.5 : 0;
  int kills = 0;
  for (; kills < wanted; ++kills) {
    const pid_t victim = AwaitPrimary(job, kills % kShards, life);
    if (victim == 0) break;
    if (kills % 2 == 1 && !AwaitSave(job)) break;
    if (::kill(victim, SIGKILL) != 0) break;
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("(pid ", victim, ") was killed"))) << launched.err();
  }
  EXPECT_EQ(launched.Wait(), 0) << launched.out() << launched.err();
  EXPECT_GE(kills, wanted > 4 ? wanted : 1) << launched.out() << launched.err();
  EXPECT_EQ(job.Digest("ckpt"), job.Digest("undisturbed")) << launched.err();
  EXPECT_TRUE(job.NoLeaks());
  RecordProperty("kills", kills);
}

}  // namespace
}  // namespace tandem::integration
