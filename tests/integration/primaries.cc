// SPDX-License-Identifier: Apache-2.0
#include "tests/integration/primaries.h"

#include <dirent.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/json.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using testing::kTestTimeout;

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

// Returns the process of the job that listens at "unix:PATH", or 0.
pid_t ProcessAt(const JobDir& job, const std::string& address) {
  for (const std::string& line : testing::Lines(testing::ReadFile("/proc/net/unix"))) {
    // Num: RefCount Protocol Flags Type St Inode Path
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    constexpr char kListens[] = "00010000";
    if (words.size() < 8 || words[3] != kListens || address != absl::StrCat("unix:", words[7])) continue;
    for (const pid_t pid :
         testing::ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", job.Mark().at("TANDEM_TEST_MARK")))) {
      if (HasSocket(pid, absl::StrCat("socket:[", words[6], "]"))) return pid;
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

}  // namespace

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

}  // namespace tandem::integration
