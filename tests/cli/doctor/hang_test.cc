// SPDX-License-Identifier: Apache-2.0
// Tests `tandem doctor trace` with a job of three processes that hangs.

#include <poll.h>
#include <sys/inotify.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/json.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/diagnostics/signal_dump.h"
#include "collectives/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using collectives::FlightRecorder;
using collectives::ProcessGroup;
using testing::Finished;
using ::testing::HasSubstr;
using testing::kTestTimeout;
using testing::RunTandem;
using testing::TempDir;

constexpr int kRanks = 3, kAbsent = 1;

// Runs one rank. Returns whether it behaved as expected.
bool PlayRank(const std::string& backend, int rank, const TempDir& dir, int hold_fd) {
  auto recorder = std::make_shared<FlightRecorder>(
      FlightRecorder::Options{.directory = dir.File("traces"), .rank = rank});
  auto signal_dump = collectives::SignalDump::Install(recorder);
  if (!signal_dump.ok()) return false;
  collectives::ProcessGroupOptions options;
  options.backend = backend;
  options.init_method = absl::StrCat("file://", dir.File("store"));
  options.rank = rank;
  options.world_size = kRanks;
  options.recorder = recorder;
  auto group = collectives::InitProcessGroup(options);
  if (!group.ok()) {
    ADD_FAILURE() << group.status();
    return false;
  }
  std::vector<float> data(1024, 1.0f);
  for (int i = 0; i < 4; ++i) {
    if (const absl::Status status = (*group)->AllReduce(absl::MakeSpan(data)).Wait(); !status.ok()) {
      ADD_FAILURE() << status;
      return false;
    }
  }
  if (rank != kAbsent) {
    // Fails, and the group writes its dump.
    return !(*group)->AllReduce(absl::MakeSpan(data), {.timeout = absl::Seconds(3)}).Wait().ok();
  }
  // Hangs outside the group until the test releases it; a signal makes it write a dump. It does not wait in a
  // read, which would be restarted after the signal: ThreadSanitizer would delay the signal there.
  pollfd held{hold_fd, POLLIN, 0};
  while (::poll(&held, 1, -1) < 0) {
  }
  return true;
}

int DumpsIn(const std::string& directory) {
  int dumps = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    dumps += absl::EndsWith(it->path().string(), ".json");
  }
  return dumps;
}

class HangTest : public ::testing::TestWithParam<std::string> {};

TEST_P(HangTest, TheRankThatDidNotCallTheFifthAllReduceIsNamed) {
  TempDir dir;
  int hold[2];
  ASSERT_EQ(::pipe(hold), 0);
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::close(hold[1]);
      ::alarm(static_cast<unsigned>(absl::ToInt64Seconds(kTestTimeout)));  // a hang of the test itself
      ::_exit(PlayRank(GetParam(), rank, dir, hold[0]) ? 0 : 1);
    }
    pids.push_back(pid);
  }
  ::close(hold[0]);
  int status = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank == kAbsent) continue;
    ASSERT_EQ(::waitpid(pids[rank], &status, 0), pids[rank]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank << ": " << status;
  }
  EXPECT_EQ(DumpsIn(dir.File("traces")), kRanks - 1);
  const int watch = ::inotify_init1(IN_CLOEXEC);
  ASSERT_GE(::inotify_add_watch(watch, dir.File("traces").c_str(), IN_MOVED_TO), 0);
  ASSERT_EQ(::kill(pids[kAbsent], SIGUSR2), 0);
  pollfd dumped{watch, POLLIN, 0};
  EXPECT_EQ(::poll(&dumped, 1, static_cast<int>(absl::ToInt64Milliseconds(kTestTimeout))), 1);
  ::close(watch);
  EXPECT_EQ(DumpsIn(dir.File("traces")), kRanks);
  ::close(hold[1]);
  ASSERT_EQ(::waitpid(pids[kAbsent], &status, 0), pids[kAbsent]);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;

  Finished finished = RunTandem({"doctor", "trace", dir.File("traces")});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_THAT(finished.out, HasSubstr("Rank 1 is behind: ranks 0 and 2 waited in all_reduce #4 (sum of f32 x "
                                      "1024) of group 'default'"));
  EXPECT_THAT(finished.out, HasSubstr("which rank 1 has not called. The last that rank 1 completed there is "
                                      "all_reduce #3"));
  finished = RunTandem({"doctor", "trace", dir.File("traces"), "--json"});
  const nlohmann::json json = ParseJson(finished.out);
  ASSERT_TRUE(json.is_object()) << finished.out;
  EXPECT_EQ(json["findings"][0]["kind"], "behind");
  EXPECT_EQ(json["findings"][0]["ranks"], nlohmann::json({kAbsent}));
  EXPECT_EQ(json["findings"][0]["waiting"], nlohmann::json({0, 2}));
}

INSTANTIATE_TEST_SUITE_P(Backends, HangTest, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tandem::cli
