// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Lines;
using ::testing::Not;
using testing::RunTandem;

// Writes a checkpoint that has only the workers' part. Returns its path.
std::string MakeCheckpoint(const std::string& root, uint64_t step, double auc) {
  absl::StatusOr<std::string> unfinished = ps::BeginCheckpoint(root, step);
  TANDEM_EXPECT_OK(unfinished);
  ps::v1::DenseState dense;
  dense.set_optimizer("adam");
  dense.set_optimizer_state(std::string(5000, 'x'));
  TANDEM_EXPECT_OK(ps::WriteDenseState(*unfinished, dense));
  ps::v1::CheckpointManifest manifest;
  manifest.set_job_name("insteval");
  manifest.set_model("wide_deep");
  manifest.set_step(step);
  manifest.set_epoch(step / 100);
  manifest.set_unix_millis(1700000000000);
  (*manifest.mutable_metrics())["valid_auc"] = auc;
  (*manifest.mutable_metrics())["schedule.best"] = 1;
  absl::StatusOr<std::string> path = ps::CommitCheckpoint(*unfinished, manifest);
  TANDEM_EXPECT_OK(path);
  return path.value_or("");
}

TEST(CkptTest, ListsCheckpointsOldestFirst) {
  testing::TempDir dir;
  MakeCheckpoint(dir.path(), 200, 0.75);
  MakeCheckpoint(dir.path(), 100, 0.5);
  const Finished finished = RunTandem({"ckpt", "ls", dir.path()}, {{"TZ", "UTC"}});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  const std::vector<std::string> lines = Lines(finished.out);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("step"), HasSubstr("epoch"), HasSubstr("metrics")));
  EXPECT_THAT(lines[1],
              AllOf(::testing::StartsWith("100 "), HasSubstr("valid_auc=0.5 "), HasSubstr("wide_deep"),
                    Not(HasSubstr("schedule")), HasSubstr("2023-11-14 22:13:20"), HasSubstr("KiB")));
  EXPECT_THAT(lines[2], AllOf(::testing::StartsWith("200 "), HasSubstr("auc=0.75")));
}

TEST(CkptTest, OneCheckpointIsListedByItself) {
  testing::TempDir dir;
  const std::string path = MakeCheckpoint(dir.path(), 200, 0.75);
  MakeCheckpoint(dir.path(), 300, 0.8);
  const Finished finished = RunTandem({"ckpt", "ls", path});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(Lines(finished.out).size(), 2u);
}

TEST(CkptTest, VerifyFindsDamage) {
  testing::TempDir dir;
  const std::string good = MakeCheckpoint(dir.path(), 100, 0.5), bad = MakeCheckpoint(dir.path(), 200, 0.5);
  Finished finished = RunTandem({"ckpt", "verify", dir.path()});
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_EQ(finished.out, good + ": good\n" + bad + ": good\n");

  std::filesystem::resize_file(bad + "/DENSE", 4000);
  finished = RunTandem({"ckpt", "verify", dir.path()});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_EQ(finished.out, good + ": good\n" + bad + ": DAMAGED\n");
  EXPECT_THAT(finished.err, HasSubstr("DENSE"));

  std::ofstream(good + "/MANIFEST") << "nonsense";
  finished = RunTandem({"ckpt", "verify", good});
  EXPECT_EQ(finished.exit_code, 1);
  EXPECT_THAT(finished.err, HasSubstr("MANIFEST"));
}

TEST(CkptTest, DirectoriesWithoutCheckpointsAreNamed) {
  testing::TempDir dir;
  for (const char* command : {"ls", "verify"}) {
    Finished finished = RunTandem({"ckpt", command, dir.path()});
    EXPECT_EQ(finished.exit_code, 1);
    EXPECT_THAT(finished.err, AllOf(HasSubstr("holds no checkpoint"), HasSubstr(dir.path())));
    finished = RunTandem({"ckpt", command, dir.File("nowhere")});
    EXPECT_EQ(finished.exit_code, 1);
    EXPECT_THAT(finished.err, HasSubstr("there is no directory"));
  }
}

}  // namespace
}  // namespace tandem::cli
