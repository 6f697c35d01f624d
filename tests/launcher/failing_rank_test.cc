// SPDX-License-Identifier: Apache-2.0
// Tests that `tandem run` names the rank that failed first, though its peers fail as well and may end
// earlier.

#include <signal.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "collectives/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::launcher {
namespace {

using ::testing::ContainsRegex;
using testing::Finished;
using testing::RunTandem;

constexpr char kHow[] = "TANDEM_TEST_HOW";
constexpr int kFailedCode = 3, kPeerCode = 4;

// One rank of a job: all ranks all-reduce until rank 1 fails.
TEST(FailingRank, DISABLED_Works) {
  const std::string how = std::getenv(kHow);
  int code = 0;
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(const auto group,
                                collectives::InitProcessGroup(collectives::ProcessGroupOptions{}));
    std::vector<float> values(1000, 1.0f);
    for (int step = 0; step < 100 && code == 0; ++step) {
      if (group->rank() == 1 && step == 50) {
        if (how == "kill") ::raise(SIGKILL);
        if (how == "abort") std::abort();
        code = how == "save" ? 75 : kFailedCode;
        break;
      }
      const absl::Status reduced = group->AllReduce(values).Wait();
      if (reduced.ok()) continue;
      std::fprintf(stderr, "%s\n", std::string(reduced.message()).c_str());
      code = kPeerCode;
    }
  }
  std::exit(code);
}

Finished RunFailing(const std::string& how, const std::string& log_dir, int workers) {
  return RunTandem({"run", "--workers", absl::StrCat(workers), "--log-dir", log_dir, "--",
                    std::filesystem::read_symlink("/proc/self/exe"), "--gtest_also_run_disabled_tests",
                    "--gtest_filter=FailingRank.DISABLED_Works"},
                   {{kHow, how}});
}

class FailingRankTest : public ::testing::TestWithParam<int> {};

TEST_P(FailingRankTest, TheRankThatFailedFirstIsNamed) {
  const struct {
    const char *how, *line;
    int exit_code;
  } kCases[] = {
      {"return", "worker/1 \\(pid [0-9]+\\) exited with code 3; stopping the job", kFailedCode},
      {"save", "worker/1 \\(pid [0-9]+\\) exited with code 75; stopping the job", 75},
      {"kill", "worker/1 \\(pid [0-9]+\\) was killed by signal 9 \\(SIGKILL\\); stopping", 128 + SIGKILL},
      {"abort", "worker/1 \\(pid [0-9]+\\) was killed by signal 6 \\(SIGABRT\\); stopping", 128 + SIGABRT},
  };
  for (const auto& one : kCases) {
    for (int run = 0; run < 3; ++run) {
      testing::TempDir dir;
      const Finished finished = RunFailing(one.how, dir.path(), GetParam());
      EXPECT_EQ(finished.exit_code, one.exit_code) << one.how << ": " << finished.err;
      EXPECT_THAT(finished.err, ContainsRegex(one.line)) << one.how;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, FailingRankTest, ::testing::Values(2, 4));

}  // namespace
}  // namespace tandem::launcher
