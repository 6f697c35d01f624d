// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/processes/tandem_process.h"
#include "tests/testing/temp_dir.h"

namespace tandem::cli {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::RunTandem;
using testing::TandemProcess;
using Json = nlohmann::json;

// A job of a bandit, which takes a few milliseconds.
class RlCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ofstream(dir_.File("job.yaml"))
        << "name: arms\nenv: bandit\npolicy: {hidden: [8]}\nalgorithm: {kind: ppo, lr: 0.01, unroll: 32}\n"
           "stop: {env_steps: 8000}\nevaluation: {episodes: 10}\n";
  }
  Json ReadJson(const std::string& name) { return Json::parse(*ReadFile(dir_.File(name))); }
  testing::TempDir dir_;
};

TEST_F(RlCommandTest, AJobIsTrainedEvaluatedAndPlayed) {
  const Finished trained = RunTandem({"rl", "job.yaml", "--report", "report.json"}, {}, dir_.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.out << trained.err;
  EXPECT_THAT(trained.out,
              AllOf(HasSubstr("arms: ppo on bandit, seed 1"), HasSubstr("over 10 fresh episodes"),
                    HasSubstr("tandem rl eval runs/arms/model.safetensors")));
  const Json report = ReadJson("report.json");
  EXPECT_EQ(report["evaluation"]["mean"], 1.0);
  const Finished evaluated =
      RunTandem({"rl", "eval", "runs/arms/model.safetensors", "--episodes", "7", "--json"}, {}, dir_.path());
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  EXPECT_EQ(Json::parse(evaluated.out)["mean"], 1.0);
  EXPECT_EQ(Json::parse(evaluated.out)["episodes"], 7);
  const Finished played = RunTandem({"rl", "play", "runs/arms/model.safetensors"}, {}, dir_.path());
  EXPECT_EQ(played.exit_code, 0) << played.err;
  EXPECT_THAT(played.out,
              AllOf(HasSubstr("action 3  reward 1"), HasSubstr("terminated after 1 steps; return 1")));
}

TEST_F(RlCommandTest, SeedsRunInParallelWithTheBitsOfEachAlone) {
  const Finished together = RunTandem(
      {"rl", "job.yaml", "--seeds", "1-3", "--parallel", "3", "--report", "all.json"}, {}, dir_.path());
  ASSERT_EQ(together.exit_code, 0) << together.err;
  EXPECT_THAT(together.out, HasSubstr("mean of 3 seeds: 1.00"));
  // The number of BLAS threads that the environment asks for does not count either.
  const Finished alone = RunTandem({"rl", "job.yaml", "--set", "seed=2", "--report", "one.json"},
                                   {{"OPENBLAS_NUM_THREADS", "4"}, {"OMP_NUM_THREADS", "4"}}, dir_.path());
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  EXPECT_EQ(ReadJson("all.json")["runs"][1]["parameters_hash"], ReadJson("one.json")["parameters_hash"]);
  EXPECT_NE(ReadJson("all.json")["runs"][0]["parameters_hash"], ReadJson("one.json")["parameters_hash"]);
  EXPECT_TRUE(ReadFile(dir_.File("runs/arms/model-seed-2.safetensors")).ok());
}

TEST_F(RlCommandTest, PlayShowsTheEpisodesThatEvalCounts) {
  ASSERT_EQ(RunTandem({"rl", "job.yaml", "--set", "env={kind: bandit, noise: 1}"}, {}, dir_.path()).exit_code,
            0);
  const std::string model = "runs/arms/model.safetensors";
  const Finished evaluated = RunTandem({"rl", "eval", model, "--json"}, {}, dir_.path());
  ASSERT_EQ(evaluated.exit_code, 0) << evaluated.err;
  for (const int episode : {0, 4}) {
    const Finished played =
        RunTandem({"rl", "play", model, "--episode", absl::StrCat(episode)}, {}, dir_.path());
    ASSERT_EQ(played.exit_code, 0) << played.err;
    char text[64];
    std::snprintf(text, sizeof text, "return %g\n",
                  Json::parse(evaluated.out)["returns"][static_cast<size_t>(episode)].get<double>());
    EXPECT_THAT(played.out, HasSubstr(text));
  }
}

TEST_F(RlCommandTest, ARunWithoutEvaluationIsNoZero) {
  const Finished trained = RunTandem(
      {"rl", "job.yaml", "--seeds", "1-2", "--set", "evaluation=0", "--report", "all.json"}, {}, dir_.path());
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, AllOf(HasSubstr("none of 2 seeds was evaluated"), Not(HasSubstr("seed 1: 0"))));
  EXPECT_FALSE(ReadJson("all.json").contains("mean"));
}

TEST_F(RlCommandTest, ASeedThatFailsKeepsTheReportsOfTheOthers) {
  // This scale makes the rewards infinite.
  const Finished trained = RunTandem(
      {"rl", "job.yaml", "--seeds", "1-2", "--set", "algorithm.reward_scale=1e39", "--report", "all.json"},
      {}, dir_.path());
  EXPECT_EQ(trained.exit_code, 1) << trained.out;
  EXPECT_THAT(trained.err, AllOf(HasSubstr("seed 1: job 'arms': the gradient"), HasSubstr("seed 2: ")));
  EXPECT_THAT(trained.out, HasSubstr("failed"));
  EXPECT_EQ(ReadJson("all.json")["runs"].size(), 2u);
}

TEST_F(RlCommandTest, JobsOfOneCommandArePointedToTheOther) {
  const Finished trained = RunTandem({"train", "job.yaml"}, {}, dir_.path());
  EXPECT_EQ(trained.exit_code, 2);
  EXPECT_THAT(trained.err, HasSubstr("run `tandem rl job.yaml`"));
  const std::string job = absl::StrCat(TANDEM_JOBS_DIR, "/planted.yaml");
  const Finished learned = RunTandem({"rl", job}, {}, dir_.path());
  EXPECT_EQ(learned.exit_code, 2);
  EXPECT_THAT(learned.err, HasSubstr(absl::StrCat("run `tandem train ", job, "`")));
}

TEST_F(RlCommandTest, MistakesAreNamed) {
  const auto run = [&](const std::vector<std::string>& args, int exit_code) {
    const Finished finished = RunTandem(args, {}, dir_.path());
    EXPECT_EQ(finished.exit_code, exit_code) << finished.out << finished.err;
    return finished.err;
  };
  EXPECT_THAT(run({"rl"}, 2), HasSubstr("needs a job file"));
  EXPECT_THAT(run({"rl", "job.yaml", "--set", "env=catsh"}, 2), HasSubstr("did you mean 'catch'"));
  EXPECT_THAT(run({"rl", "job.yaml", "--seeds", "x"}, 2), HasSubstr("x"));
  EXPECT_THAT(run({"rl", "job.yaml", "--seeds", "2000000000000000"}, 2), HasSubstr("is greater than"));
  EXPECT_THAT(run({"rl", "job.yaml", "--report", "job.yaml/x"}, 1), HasSubstr("--report"));
  EXPECT_THAT(run({"rl", "none.yaml"}, 2), HasSubstr("none.yaml"));
  EXPECT_THAT(run({"rl", "eval", "job.yaml"}, 1), HasSubstr("is no model of tandem rl"));
  EXPECT_THAT(run({"rl", "job.yaml", "--set", "model=job.yaml/x"}, 1), HasSubstr("job.yaml/x"));
  ASSERT_EQ(RunTandem({"rl", "job.yaml"}, {}, dir_.path()).exit_code, 0);
  for (const char* command : {"eval", "play"}) {
    EXPECT_THAT(run({"rl", command, "runs/arms/model.safetensors", "--set", "env=catch"}, 1),
                AllOf(HasSubstr("'catch' has 50 numbers an observation and 3 choices"),
                      HasSubstr("made for one with 1 numbers an observation and 4 choices")));
  }
}

TEST_F(RlCommandTest, ThePrintedJobIsAJob) {
  const Finished printed = RunTandem({"rl", "job.yaml", "--print-job"}, {}, dir_.path());
  ASSERT_EQ(printed.exit_code, 0);
  EXPECT_THAT(printed.out,
              AllOf(HasSubstr("gamma: 0.99"), HasSubstr("arms: 4"), Not(HasSubstr("mean_return"))));
  std::ofstream(dir_.File("printed.yaml")) << printed.out;
  const Finished again = RunTandem({"rl", "printed.yaml", "--print-job"}, {}, dir_.path());
  EXPECT_EQ(again.out, printed.out);
}

TEST_F(RlCommandTest, SigtermSavesTheModel) {
  TandemProcess process({"rl", "job.yaml", "--set", "stop.env_steps=1000000000000"}, {}, dir_.path());
  ASSERT_TRUE(process.WaitForOutput("arms: ppo on bandit for 1000000000000 steps"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 75) << process.err();
  TandemProcess resumed({"rl", "job.yaml", "--resume", "--set", "stop.env_steps=1000000000000"}, {},
                        dir_.path());
  EXPECT_TRUE(resumed.WaitForOutput("resumed at step "));
  resumed.Signal(SIGTERM);
  EXPECT_EQ(resumed.Wait(), 75) << resumed.err();
  EXPECT_EQ(RunTandem({"rl", "eval", "runs/arms/model.safetensors"}, {}, dir_.path()).exit_code, 0);
}

}  // namespace
}  // namespace tandem::cli
