// SPDX-License-Identifier: Apache-2.0
// Runs that end early and are continued, as a user does it.

#include <signal.h>

#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/integration/job_dir.h"
#include "tests/testing/processes/tandem_process.h"

namespace tandem::integration {
namespace {

using testing::Finished;
using ::testing::HasSubstr;
using testing::TandemProcess;

Args Alone(const Args& more) {
  Args args = {"train", "job.yaml", "--no-baselines"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

TEST(CheckpointTest, AProcessAloneResumes) {
  const JobDir job;
  ASSERT_EQ(job.Run(Alone({"--set", "checkpoint.dir=straight"})).exit_code, 0);
  ASSERT_EQ(job.Run(Alone({"--set", "train.epochs=1"})).exit_code, 0);
  const Finished resumed = job.Run(Alone({"--resume", "latest"}));
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(job.Digest("ckpt"), job.Digest("straight"));
  const Finished refused = job.Run(Alone({}));
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("--overwrite"));
}

TEST(CheckpointTest, AJobWhoseWorkerIsKilledResumesInMidEpochWithTheSameBits) {
  const JobDir job(20000);  // 500 steps an epoch
  const Args small = {"--no-baselines", "--set", "train.batch_size=16", "--set", "train.epochs=1"};
  Args undisturbed = small;
  undisturbed.insert(undisturbed.end(), {"--set", "checkpoint.dir=undisturbed"});
  ASSERT_EQ(job.Train(2, 2, undisturbed).exit_code, 0);

  Args more = small;
  more.insert(more.end(), {"--resume", "auto", "--set", "checkpoint.every_steps=20", "--set",
                           "checkpoint.async_save=true", "--set", "checkpoint.deltas=5"});
  Args args = job.LaunchArgs(2, 2, more);
  args.insert(args.begin() + 1, {"--max-restarts", "1"});
  std::filesystem::create_directory(job.File("ckpt"));
  TandemProcess launched(args, job.Mark(), job.File("."));
  const absl::Time deadline = MonotonicNow() + absl::Minutes(2);
  while (job.Checkpoints("ckpt").empty() && MonotonicNow() < deadline) std::this_thread::yield();
  const pid_t worker = job.ProcessWith("RANK=1");
  const bool killed = worker != 0 && ::kill(worker, SIGKILL) == 0;  // else the job has ended
  EXPECT_EQ(launched.Wait(), 0) << launched.out() << launched.err();
  if (killed) {
    EXPECT_THAT(launched.out() + launched.err(), HasSubstr("loaded "));
  }
  EXPECT_EQ(job.Digest(job.Checkpoints("ckpt").back()), job.Digest("undisturbed"));
  EXPECT_TRUE(job.NoLeaks());
}

TEST(CheckpointTest, SigtermSavesACheckpointAndExitsWith75) {
  const JobDir job;
  TandemProcess endless(Alone({"--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=100000"}),
                        job.Mark(), job.File("."));
  ASSERT_TRUE(endless.WaitForOutput("epoch 1/100000")) << endless.err();
  endless.Signal(SIGTERM);
  EXPECT_EQ(endless.Wait(), 75) << endless.err();
  EXPECT_THAT(endless.err(), HasSubstr("--resume latest"));
  const absl::StatusOr<std::string> latest = ps::LatestCheckpoint(job.File("ckpt"));
  ASSERT_TRUE(latest.ok()) << latest.status();
}

TEST(CheckpointTest, SigtermToEveryProcessSavesACheckpoint) {
  const JobDir job;
  Args args = job.LaunchArgs(
      2, 2, {"--no-baselines", "--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=100000"});
  TandemProcess launched(args, job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/100000")) << launched.err();
  const std::string mark = absl::StrCat("TANDEM_TEST_MARK=", job.Mark().at("TANDEM_TEST_MARK"));
  for (const pid_t pid : testing::ProcessesMarked(mark)) ::kill(pid, SIGTERM);
  EXPECT_EQ(launched.Wait(), 75) << launched.err();
  EXPECT_TRUE(job.NoLeaks());
  const absl::StatusOr<std::string> latest = ps::LatestCheckpoint(job.File("ckpt"));
  ASSERT_TRUE(latest.ok()) << latest.status();
}

TEST(CheckpointTest, AllWorkersStopWhenOneGetsSigterm) {
  const JobDir job;
  Args args = job.LaunchArgs(
      1, 2, {"--no-baselines", "--set", "train.epochs=100000", "--set", "checkpoint.every_epochs=100000"});
  TandemProcess launched(args, job.Mark(), job.File("."));
  ASSERT_TRUE(launched.WaitForOutput("epoch 1/100000")) << launched.err();
  const pid_t worker = job.ProcessWith("RANK=1");
  ASSERT_NE(worker, 0);
  ASSERT_EQ(::kill(worker, SIGTERM), 0);
  EXPECT_EQ(launched.Wait(), 75) << launched.err();
  EXPECT_TRUE(job.NoLeaks());
  const absl::StatusOr<std::string> latest = ps::LatestCheckpoint(job.File("ckpt"));
  ASSERT_TRUE(latest.ok()) << latest.status();
  const absl::StatusOr<ps::v1::CheckpointManifest> manifest = ps::ReadManifest(*latest);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const Finished resumed = job.Train(2, 2,
                                     {"--no-baselines", "--resume", "latest", "--set",
                                      absl::StrCat("train.epochs=", manifest->epoch() + 1)});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
}

}  // namespace
}  // namespace tandem::integration
