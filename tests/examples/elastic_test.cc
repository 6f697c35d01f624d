// SPDX-License-Identifier: Apache-2.0
// Tests the elastic example while its processes die one by one, and all together.

#include <signal.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem {
namespace {

using ::testing::ContainsRegex;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TandemProcess;

class ElasticExampleTest : public ::testing::Test {
 protected:
  std::vector<std::string> Job(int64_t last_step) const {
    return {"run",
            "--workers",
            "2",
            "--on-failure",
            "reform",
            "--max-restarts",
            "5",
            "--log-dir",
            dir_.File("logs"),
            "--",
            TANDEM_ELASTIC_BINARY,
            dir_.File("model"),
            absl::StrCat(last_step)};
  }
  testing::TempDir dir_;
};

TEST_F(ElasticExampleTest, AJobThatBeginsAgainTakesItsLastCheckpoint) {
  const Finished first = testing::RunTandem(Job(120));
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, HasSubstr("2 ranks go on after step 0"));
  EXPECT_THAT(first.out, ContainsRegex("step 120: loss 0\\.0"));
  // All processes have died, and steps 101 to 120 are lost, because no checkpoint has them.
  const Finished second = testing::RunTandem(Job(400));
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.out, HasSubstr("2 ranks go on after step 100"));
  EXPECT_THAT(second.out, ContainsRegex("step 400: loss 0\\.0000"));
}

TEST_F(ElasticExampleTest, AProcessThatComesBackGetsTheStateOfTheOther) {
  TandemProcess job(Job(int64_t{1} << 40));
  ASSERT_TRUE(job.WaitForOutput("2 ranks go on after step 0")) << job.err();
  const std::vector<pid_t> workers = testing::ProcessesMarked(dir_.File("model"));
  pid_t second = -1;
  for (const pid_t pid : workers) {
    if (testing::ReadFile(absl::StrCat("/proc/", pid, "/environ")).find(std::string("\0RANK=1\0", 8)) !=
        std::string::npos) {
      second = pid;
    }
  }
  ASSERT_GT(second, 0);
  ::kill(second, SIGKILL);
  ASSERT_TRUE(job.WaitForOutput("epoch 2: 2 ranks go on after step ")) << job.err();
  job.Signal(SIGTERM);
  EXPECT_EQ(job.Wait(), 143);
}

}  // namespace
}  // namespace tandem
