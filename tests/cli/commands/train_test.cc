// SPDX-License-Identifier: Apache-2.0
// tandem train as a command: exit codes, other data, and paths that are none.

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::RunTandem;

class TrainTest : public ::testing::Test {
 protected:
  TrainTest() {
    WriteClicks("day1.csv", 1500, 1);
    WriteClicks("day2.csv", 1000, 2);
    std::ofstream(dir_.File("job.yaml"))
        << "name: clicks\ndata: {train: day1.csv, label: click, sparse: [user, item]}\n"
           "model: {kind: dnn, dim: 4, hidden: [8]}\n"
           "train: {batch_size: 128, epochs: 2}\ncheckpoint: {dir: ckpt}\n";
  }
  void WriteClicks(const std::string& name, int rows, uint64_t seed) {
    std::ofstream clicks(dir_.File(name));
    clicks << "click,user,item\n";
    CounterRandom random(seed, seed);
    for (int i = 0; i < rows; ++i) {
      const uint64_t user = random.Below(30);
      clicks << (random.Below(30) < user ? 1 : 0) << ",u" << user << ",i" << random.Below(9) << "\n";
    }
  }
  Finished Tandem(const std::vector<std::string>& args) { return RunTandem(args, {}, dir_.path()); }
  Finished Train(std::vector<std::string> args) {
    args.insert(args.begin(), {"train", "job.yaml", "--no-baselines"});
    return Tandem(args);
  }
  std::set<std::string> Files() {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_.path()))
      names.insert(entry.path());
    return names;
  }

  testing::TempDir dir_;
};

TEST_F(TrainTest, OtherDataThanTheCheckpointsAndNothingToTrainAreExitCode2) {
  ASSERT_EQ(Train({}).exit_code, 0);
  const Finished nothing = Train({"--resume", "latest"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, AllOf(HasSubstr("nothing to train"), HasSubstr("--set train.epochs=4")));
  EXPECT_EQ(Train({"--resume", "auto"}).exit_code, 0);
  const std::vector<std::string> day2 = {"--resume", "latest", "--set", "data.train=day2.csv"};
  const Finished other = Train(day2);
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("day2.csv"), HasSubstr("day1.csv"), HasSubstr("--data-changed")));
  const Finished launched = Tandem({"run", "--ps", "1", "--workers", "2", "--", TANDEM_BINARY, "train",
                                    "job.yaml", "--resume", "latest", "--set", "data.train=day2.csv"});
  EXPECT_EQ(launched.exit_code, 2) << launched.err;
  EXPECT_THAT(launched.out + launched.err, HasSubstr("day2.csv"));

  std::vector<std::string> accepted = day2;
  accepted.insert(accepted.end(), {"--data-changed", "--report", "report.json"});
  const Finished trained = Train(accepted);
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(ParseJson(ReadFile(dir_.File("report.json"))).at("epochs").size(), 2u);
  EXPECT_EQ(Train({"--data-changed"}).exit_code, 2);  // without --resume
}

TEST_F(TrainTest, EvalPredictAndExportOfADirectoryMeanTheSameCheckpoint) {
  // The best epoch is made an earlier one than the last.
  ASSERT_EQ(Train({}).exit_code, 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::vector<ps::CheckpointEntry> entries,
                              ps::ListCheckpoints(dir_.File("ckpt")));
  ASSERT_EQ(entries.size(), 2u);
  ps::v1::CheckpointManifest manifest = entries[1].manifest;
  manifest.set_best_step(entries[0].step);
  TANDEM_ASSERT_OK(ps::UpdateManifest(entries[1].path, manifest));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string best, ps::BestCheckpoint(dir_.File("ckpt")));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string newest, ps::LatestCheckpoint(dir_.File("ckpt")));
  ASSERT_NE(best, newest);
  const std::string name = std::filesystem::path(best).filename();
  EXPECT_THAT(Tandem({"eval", "ckpt"}).out, HasSubstr(name));
  EXPECT_THAT(Tandem({"predict", "ckpt", "-o", "scores.csv"}).out, HasSubstr(name));
  EXPECT_THAT(Tandem({"ckpt", "export", "ckpt", "-o", "arrays"}).out, HasSubstr(name));
}

TEST_F(TrainTest, ACheckpointOfAPyTorchProgramIsNamedAsSuch) {
  for (const bool torch : {true, false}) {
    const std::string root = dir_.File(torch ? "torch" : "tables");
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, ps::BeginCheckpoint(root, 10));
    if (torch) std::ofstream(unfinished + "/TORCH.json") << "{}";
    ps::v1::CheckpointManifest manifest;
    manifest.set_job_name("python");
    TANDEM_ASSERT_OK(ps::CommitCheckpoint(unfinished, manifest).status());
    const std::vector<std::vector<std::string>> commands = {
        {"eval", root},
        {"predict", root, "-o", "x.csv", "--data", "day1.csv"},
        {"train", "job.yaml", "--resume", root + "/step-000000000010"}};
    for (const std::vector<std::string>& command : commands) {
      const Finished finished = Tandem(command);
      EXPECT_NE(finished.exit_code, 0);
      EXPECT_THAT(finished.err,
                  AllOf(HasSubstr(torch ? "a checkpoint of a PyTorch program" : "written by a program"),
                        HasSubstr(torch ? "tandem.torch.checkpoint.load()" : "client.load_checkpoint()"),
                        HasSubstr("tandem ckpt export")))
          << command[0];
    }
  }
}

TEST_F(TrainTest, NoCommandTakesAnAddressForAPath) {
  const std::string url = "s3://bucket/run";
  const std::set<std::string> before = Files();
  const std::vector<std::vector<std::string>> commands = {
      {"train", url},
      {"train", "job.yaml", "--set", "checkpoint.dir=" + url},
      {"train", "job.yaml", "--set", "data.train=" + url},
      {"train", "job.yaml", "--resume", url},
      {"train", "job.yaml", "--report", url},
      {"train", "job.yaml", "--predictions", url},
      {"train", "job.yaml", "--tensorboard", url},
      {"train", "job.yaml", "--spill-dir", url},
      {"rl", url},
      {"rl", "job.yaml", "--report", url},
      {"rl", "job.yaml", "--tensorboard", url},
      {"rl", "eval", url},
      {"rl", "play", url},
      {"eval", url},
      {"eval", "ckpt", "--data", url},
      {"eval", "ckpt", "--job", url},
      {"predict", "ckpt", "-o", url},
      {"ckpt", "ls", url},
      {"ckpt", "show", url},
      {"ckpt", "verify", url},
      {"ckpt", "digest", url},
      {"ckpt", "compact", url},
      {"ckpt", "export", url, "-o", "x"},
      {"ckpt", "export", "ckpt", "-o", url},
      {"ps", "--wal-dir", url},
      {"ps", "--spill-dir", url},
      {"ps", "--checkpoint-root", url},
      {"ps", "subscribe", "--out", url},
      {"replay", "serve", "--table", "t", "--checkpoint-dir", url},
      {"run", "--log-dir", url, "--", "true"},
      {"run", "--wal-dir", url, "--", "true"},
      {"run", "--spill-dir", url, "--", "true"},
      {"run", "--checkpoint-root", url, "--", "true"},
      {"run", "--cluster", url},
      {"top", "--job", url},
      {"trace", "-o", url},
      {"doctor", "trace", url},
      {"data", "planted", "--out", url},
      {"bench", "checkpoint", "--dir", url},
  };
  for (const std::vector<std::string>& command : commands) {
    const Finished finished = Tandem(command);
    EXPECT_EQ(finished.exit_code, 2) << ::testing::PrintToString(command) << finished.err;
    EXPECT_THAT(finished.out + finished.err, HasSubstr(url)) << ::testing::PrintToString(command);
  }
  EXPECT_EQ(Files(), before);
  const Finished named = Tandem({"train", "job.yaml", "--set", "checkpoint.dir=" + url});
  EXPECT_THAT(named.err, AllOf(HasSubstr("checkpoint.dir"), HasSubstr("s3://"), HasSubstr("mount")));
}

}  // namespace
}  // namespace tandem::cli
