// SPDX-License-Identifier: Apache-2.0
// A job whose primaries are killed goes on, and ends as an undisturbed one.

#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/integration/primaries.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::kTestTimeout;
using testing::TandemProcess;

constexpr int kShards = 2;

// The number of primaries that are killed. TANDEM_FAILOVER_JOB_KILLS=50 is the long form.
int Kills() {
  const char* const text = std::getenv("TANDEM_FAILOVER_JOB_KILLS");
  return text == nullptr ? 4 : std::atoi(text);
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
