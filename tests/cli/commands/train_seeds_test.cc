// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/train_seeds.h"

#include <signal.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
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

using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using testing::ReadFile;
using testing::RunTandem;
using testing::StatusIs;

TEST(SeedsTest, AreRangesAndLists) {
  EXPECT_THAT(*ParseSeeds("1-5"), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_THAT(*ParseSeeds("7"), ElementsAre(7));
  EXPECT_THAT(*ParseSeeds("9,1-2,4-4"), ElementsAre(9, 1, 2, 4));
  for (const auto& [wrong, why] :
       {std::pair("", "no list"), std::pair("a", "no list"), std::pair("1-", "no list"),
        std::pair("-1", "no list"), std::pair("1,,2", "no list"), std::pair("1-2-3", "no list"),
        std::pair("1.5", "no list"), std::pair("18446744073709551615", "no list"),
        std::pair("3-1", "ends before it begins"), std::pair("1-3,2", "seed 2 twice"),
        std::pair("1-1001", "more than 1000"), std::pair("1-4611686018427387904", "more than 1000")}) {
    EXPECT_THAT(ParseSeeds(wrong), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why))) << wrong;
  }
}

TEST(SeedsTest, TheDeviationIsThatOfASample) {
  const Spread spread = SpreadOf({1, 2, 3, 6});
  EXPECT_DOUBLE_EQ(spread.mean, 3);
  EXPECT_DOUBLE_EQ(spread.deviation, std::sqrt(14.0 / 3));
  EXPECT_EQ(SpreadOf({5}).deviation, 0);
}

class TrainSeedsTest : public ::testing::Test {
 protected:
  TrainSeedsTest() {
    std::ofstream clicks(dir_.File("clicks.csv"));
    clicks << "click,user\n";
    CounterRandom random(1, 1);
    for (int i = 0; i < 1500; ++i) {
      const uint64_t user = random.Below(30);
      clicks << (random.Below(30) < user ? 1 : 0) << ",u" << user << "\n";
    }
    std::ofstream(dir_.File("job.yaml"))
        << "name: seeds\ndata: {train: clicks.csv, label: click, sparse: [user]}\n"
           "model: {kind: dnn, dim: 4, hidden: [8]}\n"
           "train: {batch_size: 128, epochs: 2}\n";
  }
  Finished Run(std::vector<std::string> args) {
    args.insert(args.begin(), {"train", "job.yaml"});
    return RunTandem(args, {}, dir_.path());
  }
  nlohmann::json Report(const std::string& name) { return ParseJson(ReadFile(dir_.File(name))); }

  testing::TempDir dir_;
};

TEST_F(TrainSeedsTest, EachSeedTrainsAsAloneAndTheReportHasMeanAndDeviation) {
  const Finished all = Run({"--seeds", "1-3", "--report", "all.json", "--set", "checkpoint.dir=it's",
                            "--predictions", "scores", "--no-baselines"});
  ASSERT_EQ(all.exit_code, 0) << all.out << all.err;
  EXPECT_THAT(all.out, HasSubstr("seeds: 3 seeds"));
  const Finished alone = Run(
      {"--set", "train.seed=2", "--report", "alone.json", "--no-baselines", "--set", "checkpoint.dir=alone"});
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const nlohmann::json report = Report("all.json");
  EXPECT_EQ(report.at("seeds"), nlohmann::json({1, 2, 3}));
  ASSERT_EQ(report.at("runs").size(), 3u);
  EXPECT_EQ(report.at("runs")[1].at("test"), Report("alone.json").at("test"));
  EXPECT_NE(report.at("runs")[0].at("test").at("auc"), report.at("runs")[1].at("test").at("auc"));
  std::vector<double> aucs;
  for (const auto& run : report.at("runs")) aucs.push_back(run.at("test").at("auc"));
  EXPECT_NEAR(report.at("test").at("auc").at("mean"), SpreadOf(aucs).mean, 1e-12);
  EXPECT_NEAR(report.at("test").at("auc").at("deviation"), SpreadOf(aucs).deviation, 1e-12);
  EXPECT_GT(report.at("test").at("auc").at("deviation"), 0.0);
  for (int seed = 1; seed <= 3; ++seed) {
    EXPECT_THAT(std::string(report.at("runs")[seed - 1].at("checkpoint")),
                ::testing::StartsWith(absl::StrCat("it's/seed-", seed, "/")));
    EXPECT_NE(ReadFile(dir_.File(absl::StrCat("scores.seed-", seed))), "");
    // The report that the run prints is there.
    const std::string printed = absl::StrCat("it's/seed-", seed, "/report.json");
    EXPECT_THAT(all.out, HasSubstr(printed));
    EXPECT_EQ(Report(printed).at("test"), report.at("runs")[seed - 1].at("test"));
  }
}

TEST_F(TrainSeedsTest, RunsMayHaveServersAndWorkers) {
  const Finished finished =
      Run({"--seeds", "4,5", "--ps", "1", "--workers", "2", "--report", "r.json", "--no-baselines"});
  ASSERT_EQ(finished.exit_code, 0) << finished.out << finished.err;
  const nlohmann::json report = Report("r.json");
  ASSERT_EQ(report.at("runs").size(), 2u);
  EXPECT_EQ(report.at("runs")[1].at("workers"), 2);
  EXPECT_EQ(report.at("runs")[1].at("seed"), 5);
}

TEST_F(TrainSeedsTest, ASignalIsPassedOnToTheRunWhichSavesItsState) {
  for (const auto& [launched, signal] : {std::pair(false, SIGTERM), std::pair(true, SIGINT)}) {
    const std::string name = launched ? "launched" : "alone", tmp = dir_.File(absl::StrCat(name, "-tmp"));
    std::filesystem::create_directory(tmp);
    std::vector<std::string> args = {"train",
                                     "job.yaml",
                                     "--seeds",
                                     "1-3",
                                     "--no-baselines",
                                     "--set",
                                     "train.epochs=100000",
                                     "--set",
                                     "checkpoint.every_epochs=100000",
                                     "--set",
                                     absl::StrCat("checkpoint.dir=", name)};
    if (launched) args.insert(args.end(), {"--ps", "1", "--workers", "2"});
    testing::TandemProcess seeds(args, {{"TMPDIR", tmp}, {"TANDEM_TEST_MARK", tmp}}, dir_.path());
    ASSERT_TRUE(seeds.WaitForOutput("epoch 1/100000")) << seeds.err();
    seeds.Signal(signal);
    EXPECT_EQ(seeds.Wait(), 75) << seeds.err();
    EXPECT_THAT(seeds.err(), HasSubstr("stopped on request at seed 1"));
    const absl::StatusOr<std::string> saved = ps::LatestCheckpoint(dir_.File(absl::StrCat(name, "/seed-1")));
    EXPECT_TRUE(saved.ok()) << saved.status();
    EXPECT_TRUE(std::filesystem::is_empty(tmp));
    EXPECT_TRUE(testing::WaitUntilNoneMarked(absl::StrCat("TANDEM_TEST_MARK=", tmp)));
  }
}

TEST_F(TrainSeedsTest, ControlCSavesAsSigtermDoes) {
  const std::vector<std::string> endless = {"train",
                                            "job.yaml",
                                            "--no-baselines",
                                            "--set",
                                            "train.epochs=100000",
                                            "--set",
                                            "checkpoint.every_epochs=100000",
                                            "--set",
                                            "checkpoint.dir=run"};
  const auto with = [&](std::vector<std::string> front) {
    front.insert(front.end(), endless.begin(), endless.end());
    return front;
  };
  {
    testing::TandemProcess train(endless, {}, dir_.path());
    ASSERT_TRUE(train.WaitForOutput("epoch 1/100000")) << train.err();
    train.Signal(SIGINT);
    EXPECT_EQ(train.Wait(), 75) << train.err();
    EXPECT_THAT(train.err(), HasSubstr("Ctrl-C again ends it at once"));
    const absl::StatusOr<std::string> saved = ps::LatestCheckpoint(dir_.File("run"));
    EXPECT_TRUE(saved.ok()) << saved.status();
  }
  std::filesystem::remove_all(dir_.File("run"));
  {
    testing::TandemProcess job(with({"run", "--ps", "1", "--workers", "2", "--", "tandem"}), {}, dir_.path());
    ASSERT_TRUE(job.WaitForOutput("epoch 1/100000")) << job.err();
    job.Signal(SIGINT);
    EXPECT_EQ(job.Wait(), 75) << job.err();
    EXPECT_THAT(job.err(), HasSubstr("stopping on SIGINT"));
    const absl::StatusOr<std::string> saved = ps::LatestCheckpoint(dir_.File("run"));
    EXPECT_TRUE(saved.ok()) << saved.status();
  }
}

TEST_F(TrainSeedsTest, ASecondControlCEndsAWorkerThatCannotSave) {
  testing::TandemProcess job(
      {"run", "--ps", "1", "--workers", "2", "--", "tandem", "train", "job.yaml", "--no-baselines", "--set",
       "train.epochs=100000", "--set", "checkpoint.every_epochs=100000", "--set", "checkpoint.dir=run"},
      {{"TANDEM_TEST_MARK", dir_.path()}}, dir_.path());
  ASSERT_TRUE(job.WaitForOutput("epoch 1/100000")) << job.err();
  pid_t workers[2] = {0, 0};
  for (const pid_t pid : testing::ProcessesMarked(absl::StrCat("TANDEM_TEST_MARK=", dir_.path()))) {
    for (const absl::string_view variable :
         absl::StrSplit(ReadFile(absl::StrCat("/proc/", pid, "/environ")), '\0')) {
      if (variable == "RANK=0") workers[0] = pid;
      if (variable == "RANK=1") workers[1] = pid;
    }
  }
  ASSERT_GT(workers[0], 0);
  ASSERT_GT(workers[1], 0);
  // Without the other worker, no step can be agreed upon after which to stop.
  ::kill(workers[1], SIGSTOP);
  ::kill(workers[0], SIGINT);
  while (testing::IsAlive(workers[0])) ::kill(workers[0], SIGINT);
  EXPECT_EQ(job.Wait(), 128 + SIGINT) << job.err();
  EXPECT_THAT(job.err(), HasSubstr("was killed by signal 2 (SIGINT)"));
}

TEST_F(TrainSeedsTest, ARunThatFailsIsNamed) {
  const Finished finished = Run({"--seeds", "1-3", "--set", "data.train=no.csv"});
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(finished.err, HasSubstr("no.csv"));
  EXPECT_THAT(finished.err, HasSubstr("the run with seed 1 failed"));
}

TEST_F(TrainSeedsTest, WhatDoesNotGoWithSeedsIsRefused) {
  Finished finished = Run({"--seeds", "5-1"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("ends before it begins"));
  finished = Run({"--seeds", "1-2", "--resume", "some/directory"});
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--resume"));
  finished = Run({"--workers", "2"});
  EXPECT_NE(finished.exit_code, 0);
  EXPECT_THAT(finished.err, HasSubstr("--seeds"));
  finished =
      RunTandem({"train", "job.yaml", "--seeds", "1-2"}, {{"RANK", "0"}, {"WORLD_SIZE", "2"}}, dir_.path());
  EXPECT_EQ(finished.exit_code, 2);
  EXPECT_THAT(finished.err, HasSubstr("--seeds starts a job for each seed"));
}

}  // namespace
}  // namespace tandem::cli
