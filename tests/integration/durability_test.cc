// SPDX-License-Identifier: Apache-2.0
// A job whose parameter servers are killed goes on, and ends as an undisturbed one.

#include <signal.h>

#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::TandemProcess;

Args Durable(const JobDir& job, int servers, int workers, Args more) {
  more.insert(more.end(), {"--no-baselines", "--set", "ps.durability=log"});
  Args args = job.LaunchArgs(servers, workers, more);
  args.insert(args.begin() + 1, {"--wal-dir", "wal"});
  return args;
}

TEST(DurabilityTest, ASyncJobWithKilledServersEndsWithTheBitsOfAnUndisturbedOne) {
  const JobDir job;
  const Args epochs = {"--set", "train.epochs=12"};
  Args undisturbed = epochs;
  undisturbed.insert(undisturbed.end(), {"--no-baselines", "--set", "checkpoint.dir=undisturbed"});
  ASSERT_EQ(job.Train(2, 2, undisturbed).exit_code, 0);

  std::map<std::string, std::string> variables = job.Mark();
  variables["TANDEM_WAL_SNAPSHOT"] = "65536";  // so that servers also come back with snapshots
  TandemProcess launched(Durable(job, 2, 2, epochs), variables, job.File("."));
  int kills = 0;
  for (int epoch = 1; epoch <= 6; ++epoch) {
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("epoch ", epoch, "/12"))) << launched.err();
    const pid_t victim = job.ProcessWith(absl::StrCat("TANDEM_PS_INDEX=", epoch % 2));
    if (victim == 0 || ::kill(victim, SIGKILL) != 0) continue;  // it is being started again
    ++kills;
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("(pid ", victim, ") was killed"))) << launched.err();
  }
  EXPECT_GT(kills, 0);
  EXPECT_EQ(launched.Wait(), 0) << launched.out() << launched.err();
  EXPECT_THAT(launched.err(), HasSubstr("comes back with its log, at the same address"));
  EXPECT_EQ(job.Digest("ckpt"), job.Digest("undisturbed"));
  EXPECT_TRUE(job.NoLeaks());
  EXPECT_FALSE(std::filesystem::exists(job.File("wal")));  // the job has ended well
}

TEST(DurabilityTest, ServersThatAreKilledWhileTheySaveCostNoMoreThanThatCheckpoint) {
  const JobDir job(20000);
  const Args small = {"--set", "train.batch_size=16", "--set", "train.epochs=3"};
  Args undisturbed = small;
  undisturbed.insert(undisturbed.end(), {"--no-baselines", "--set", "checkpoint.dir=undisturbed"});
  ASSERT_EQ(job.Train(2, 2, undisturbed).exit_code, 0);

  Args saving = small;
  saving.insert(saving.end(), {"--set", "checkpoint.every_steps=3", "--set", "checkpoint.async_save=true",
                               "--set", "checkpoint.deltas=5"});
  TandemProcess launched(Durable(job, 2, 2, saving), job.Mark(), job.File("."));
  int kills = 0;
  for (int epoch = 1; epoch <= 2; ++epoch) {
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("epoch ", epoch, "/3"))) << launched.err();
    const pid_t victim = job.ProcessWith(absl::StrCat("TANDEM_PS_INDEX=", epoch % 2));
    if (victim == 0 || ::kill(victim, SIGKILL) != 0) continue;  // the job has ended
    ++kills;
    ASSERT_TRUE(launched.WaitForOutput(absl::StrCat("(pid ", victim, ") was killed"))) << launched.err();
  }
  EXPECT_GT(kills, 0);
  EXPECT_EQ(launched.Wait(), 0) << launched.out() << launched.err();
  EXPECT_EQ(job.Digest(job.Checkpoints("ckpt").back()), job.Digest(job.Checkpoints("undisturbed").back()));
  const Finished verified = job.Run({"ckpt", "verify", "ckpt"});
  EXPECT_EQ(verified.exit_code, 0) << verified.out << verified.err;
  EXPECT_TRUE(job.NoLeaks());
}

TEST(DurabilityTest, AJobThatRequiresALogIsRefusedWithoutOneOrWithATimeoutThatIsTooShort) {
  const JobDir job;
  const Finished without = job.Train(1, 1, {"--no-baselines", "--set", "ps.durability=log"});
  EXPECT_EQ(without.exit_code, 1);
  EXPECT_THAT(without.err, HasSubstr("ps/0 has no log: start the servers with `tandem run --wal-dir DIR`"));
  const Finished alone = job.Run({"train", "job.yaml", "--no-baselines", "--set", "ps.durability=log"});
  EXPECT_EQ(alone.exit_code, 1);
  EXPECT_THAT(alone.err, HasSubstr("this process is alone"));
  const Finished soon = job.Run(Durable(job, 1, 1, {"--set", "train.timeout_seconds=5"}));
  EXPECT_EQ(soon.exit_code, 1);
  EXPECT_THAT(soon.err, HasSubstr("train.timeout_seconds is 5, but a server that comes back may need 21 s"));
}

}  // namespace
}  // namespace tandem::integration
