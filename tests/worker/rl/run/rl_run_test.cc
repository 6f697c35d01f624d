// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/run/rl_run.h"

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/clock.h"
#include "base/command_context.h"
#include "base/read_file.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"
#include "worker/rl/job/rl_parser.h"
#include "worker/rl/run/evaluation.h"
#include "worker/rl/run/model_file.h"

namespace tandem::rl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

RlSpec Job(const std::string& text) {
  const absl::StatusOr<RlSpec> job = ParseRlJob(text, "job.yaml");
  TANDEM_EXPECT_OK(job);
  RlSpec spec = job.value_or(RlSpec{});
  spec.checkpoint_file.clear();
  return spec;
}

// Returns the mean of the evaluations of seeds 1 to 5. One seed in ten does not learn CartPole in so few
// steps, and which one differs from processor to processor, because sums are rounded differently.
double MeanOfFiveSeeds(RlSpec job) {
  double sum = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    job.learner.seeds = {.environment = seed, .policy = seed, .evaluation = seed};
    const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true});
    TANDEM_EXPECT_OK(report);
    if (report.ok()) sum += report->evaluation.mean;
  }
  return sum / 5;
}

// CartPole in lockstep: actors and learner take turns in one thread.
TEST(RlRunTest, PpoLearnsCartPoleWithTheSameBitsTwice) {
  // A tenth of the steps of jobs/cartpole_ppo.yaml, later a fifth, at a higher rate.
  RlSpec job =
      Job("env: cartpole\npolicy: {hidden: [64, 64], activation: tanh}\nactors: 8\nstop: 50000\n"
          "algorithm: {kind: ppo, lr: 2.5e-3, unroll: 64, entropy: 0}\n");
  job.model_file.clear();
  const absl::StatusOr<RlReport> first = RunRl(job, {.silent = true}), second = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(first);
  TANDEM_ASSERT_OK(second);
  EXPECT_EQ(first->parameters_hash, second->parameters_hash);
  EXPECT_EQ(first->evaluation.returns, second->evaluation.returns);
  EXPECT_EQ(first->evaluation.returns.size(), 100u);
  EXPECT_GE(first->env_steps, 50000u);
  EXPECT_FALSE(first->curve.empty());
  job.learner.env_steps = 100000;
  EXPECT_GE(MeanOfFiveSeeds(job), 400);
}

TEST(RlRunTest, ImpalaLearnsCartPoleInLockstepWithTheSameBitsTwice) {
  RlSpec job = *LoadRlJob(absl::StrCat(TANDEM_JOBS_DIR, "/cartpole_impala.yaml"),
                          {"actors.lockstep=true", "stop=150000", "algorithm.lr=3e-3"});
  job.model_file.clear();
  const absl::StatusOr<RlReport> first = RunRl(job, {.silent = true}), second = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(first);
  TANDEM_ASSERT_OK(second);
  EXPECT_EQ(first->parameters_hash, second->parameters_hash);
  ASSERT_TRUE(first->lag.has_value());
  EXPECT_EQ(first->lag->dropped, 0u);
  EXPECT_LE(first->lag->greatest, 16u);
  EXPECT_EQ(nlohmann::json::parse(RlReportToJson({*first}, 1))["lag"]["greatest"], first->lag->greatest);
  EXPECT_THAT(FormatRlReport({*first}, 1), HasSubstr("lag of unrolls"));
  EXPECT_GE(MeanOfFiveSeeds(job), 400);
}

TEST(RlRunTest, DqnLearnsCatchIn50000Steps) {
  RlSpec job = *LoadRlJob(absl::StrCat(TANDEM_JOBS_DIR, "/catch_dqn.yaml"));
  job.model_file.clear();
  const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(report);
  EXPECT_GE(report->evaluation.mean, 0.9);
}

TEST(RlRunTest, AReturnThatIsHighEnoughEndsTheRun) {
  RlSpec job =
      Job("env: bandit\nalgorithm: {kind: ppo, lr: 0.01}\nstop: {env_steps: 1e9, mean_return: 0.8}\n");
  job.model_file.clear();
  const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(report);
  EXPECT_TRUE(report->stopped_early);
  EXPECT_GE(report->last_return, 0.8);
}

TEST(RlRunTest, ARequestToStopSavesTheModel) {
  testing::TempDir dir;
  RlSpec job = Job("env: cartpole\nalgorithm: ppo\nstop: {env_steps: 1e12}\n");
  job.model_file = dir.File("sub/model.safetensors");
  const std::atomic<bool> stop{true};
  const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true, .stop = &stop});
  TANDEM_ASSERT_OK(report);
  EXPECT_TRUE(report->interrupted);
  EXPECT_TRUE(report->evaluation.returns.empty());
  TANDEM_EXPECT_OK(LoadModel(job.model_file));
}

TEST(RlRunTest, ScalarsForTensorBoardAreWritten) {
  testing::TempDir dir;
  RlSpec job = Job("env: catch\nalgorithm: ppo\nstop: {env_steps: 4000}\n");
  job.model_file.clear();
  TANDEM_ASSERT_OK(RunRl(job, {.silent = true, .tensorboard = dir.File("scalars")}));
  std::string bytes;
  for (const auto& entry : std::filesystem::directory_iterator(dir.File("scalars")))
    bytes += ReadFile(entry.path().string()).value_or("");
  for (const char* tag :
       {"episode/return", "episode/length", "loss/policy", "loss/value", "policy/entropy", "policy/kl",
        "train/learning_rate", "train/env_steps_per_second", "evaluation/return"}) {
    EXPECT_THAT(bytes, HasSubstr(tag));
  }
}

// A clock that moves by 11 s at each look, and stops the run after `looks` of them.
class HastyClock : public Clock {
 public:
  explicit HastyClock(int looks) : looks_(looks) {}
  absl::Time Now() override {
    if (++seen_ >= looks_) stop = true;
    return absl::UnixEpoch() + absl::Hours(1) + seen_ * absl::Seconds(11);
  }
  bool AwaitUntil(absl::Mutex*, const absl::Condition&, absl::Time) override { return false; }
  absl::Duration elapsed() const { return seen_ * absl::Seconds(11); }
  std::atomic<bool> stop{false};

 private:
  const int looks_;
  int seen_ = 0;
};

TEST(RlRunTest, ALogGetsAProgressLineNowAndThenAlthoughATenthOfTheRunTakesLong) {
  testing::TempDir dir;
  RlSpec job = Job("env: bandit\nalgorithm: ppo\nstop: {env_steps: 1e12}\n");
  job.model_file = dir.File("model.safetensors");
  HastyClock clock(100);
  ::testing::internal::CaptureStdout();
  const absl::StatusOr<RlReport> report = RunRl(job, {.stop = &clock.stop, .clock = &clock});
  const std::string text = ::testing::internal::GetCapturedStdout();
  TANDEM_ASSERT_OK(report);
  size_t lines = 0;
  for (size_t at = text.find("% of"); at != std::string::npos; at = text.find("% of", at + 1)) ++lines;
  EXPECT_GE(lines, 3u) << text;
  EXPECT_LE(lines, static_cast<size_t>(clock.elapsed() / absl::Seconds(30))) << text;
}

TEST(RlRunTest, TheStatusOfTheProcessSaysWhatTheRunDoes) {
  RlSpec job = Job("env: bandit\nalgorithm: ppo\nstop: 4000\nevaluation: 2\n");
  job.model_file.clear();
  rpc::ProcessStatus status("learner/0");
  EXPECT_EQ(status.Get().state, "starting");
  const std::atomic<bool> stop{true};
  TANDEM_ASSERT_OK(RunRl(job, {.silent = true, .stop = &stop, .status = &status}));
  EXPECT_EQ(status.Get().state, "training");
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport report, RunRl(job, {.silent = true, .status = &status}));
  EXPECT_EQ(status.Get().state, "evaluating");
  EXPECT_EQ(status.Get().step, report.env_steps);
}

TEST(RlRunTest, AModelThatCannotBeSavedIsAnErrorBeforeTheTraining) {
  testing::TempDir dir;
  std::ofstream(dir.File("file")) << "x";
  RlSpec job = Job("env: cartpole\nalgorithm: ppo\nstop: {env_steps: 1e12}\n");
  job.model_file = dir.File("file/model.safetensors");
  EXPECT_THAT(RunRl(job, {.silent = true}).status().message(),
              AllOf(HasSubstr("the model"), HasSubstr("file/model.safetensors")));
  job.model_file = dir.path();
  EXPECT_THAT(RunRl(job, {.silent = true}).status().message(), HasSubstr("is a directory"));
}

TEST(RlRunTest, ATrainingThatFailsKeepsItsCurve) {
  testing::TempDir dir;
  RlSpec job =
      Job("env: {kind: pendulum, max_steps: 20}\nalgorithm: {kind: ppo, reward_scale: 1e38, unroll: 64}\n"
          "stop: 1000000\n");
  job.model_file = dir.File("model.safetensors");
  const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(report);
  EXPECT_THAT(report->failure.message(), HasSubstr("of ppo is not finite"));
  EXPECT_FALSE(report->curve.empty());
  EXPECT_TRUE(report->evaluation.returns.empty());
  EXPECT_FALSE(std::filesystem::exists(job.model_file));
}

TEST(RlRunTest, TheCurveHasEveryEpisode) {
  RlSpec job =
      Job("env: bandit\nalgorithm: {kind: ppo, lr: 0.01}\nstop: {env_steps: 1e9, mean_return: 0.8}\n");
  job.model_file.clear();
  const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(report);
  uint64_t episodes = 0;
  for (const CurvePoint& point : report->curve) episodes += point.episodes;
  EXPECT_EQ(episodes, report->episodes);
  EXPECT_EQ(report->recent, 100u);
  EXPECT_FALSE(report->figures.empty());
}

TEST(RlRunTest, APathOfAnotherEncodingIsKept) {
  testing::TempDir dir;
  RlSpec job = Job("env: bandit\nalgorithm: ppo\nstop: 2000\nevaluation: 2\n");
  job.model_file = dir.File("m\xfcller.safetensors");
  const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true});
  TANDEM_ASSERT_OK(report);
  TANDEM_EXPECT_OK(LoadModel(job.model_file));
  EXPECT_THAT(RlReportToJson({*report}, 1), HasSubstr("ller.safetensors"));
}

TEST(RlRunTest, ARequestToStopEndsTheEvaluation) {
  const RlSpec job = Job("env: {kind: pendulum, max_steps: 0}\nalgorithm: ppo\n");
  const std::unique_ptr<Policy> policy = *MakePolicy(job.learner);
  const std::atomic<bool> stop{true};
  const absl::StatusOr<Evaluation> evaluation = Evaluate(*policy, job.learner.environment, 5, 1, &stop);
  TANDEM_ASSERT_OK(evaluation);
  EXPECT_TRUE(evaluation->returns.empty());
}

TEST(RlReportTest, RunsWithoutEvaluationDoNotCountInTheMean) {
  RlReport run{.job = "j", .seed = 1, .env_steps = 10};
  run.evaluation = {.returns = {-80, -84}, .mean = -82};
  RlReport stopped{.job = "j", .seed = 2, .env_steps = 5, .interrupted = true};
  EXPECT_THAT(FormatRlReport({run, stopped}, 3),
              AllOf(HasSubstr("mean of 1 of 3 seeds: -82.00\n"), HasSubstr("-  stopped")));
  EXPECT_THAT(FormatRlReport({stopped}, 2), HasSubstr("none of 2 seeds was evaluated"));
  const nlohmann::json json = nlohmann::json::parse(RlReportToJson({run, stopped}, 3));
  EXPECT_EQ(json["mean"], -82);
  EXPECT_EQ(json["runs"].size(), 2u);
  const nlohmann::json none = nlohmann::json::parse(RlReportToJson({stopped}, 2));
  EXPECT_EQ(none["runs"].size(), 1u);
  EXPECT_FALSE(none.contains("mean"));
  EXPECT_TRUE(none["runs"][0]["last_return"].is_null());
  EXPECT_THAT(FormatRlReport({stopped}, 1), ::testing::Not(HasSubstr("the last")));
}

TEST(RlReportTest, TheReportIsJsonWithTheCurve) {
  RlReport run{.job = "j", .environment = "catch", .algorithm = "ppo", .seed = 3, .env_steps = 10};
  run.curve = {{.env_steps = 5, .episodes = 2, .mean_return = 0.5}};
  run.evaluation = {.returns = {1, 0}, .mean = 0.5};
  const nlohmann::json one = nlohmann::json::parse(RlReportToJson({run}, 1));
  EXPECT_EQ(one["curve"][0]["mean_return"], 0.5);
  EXPECT_EQ(one["evaluation"]["returns"].size(), 2u);
  RlReport other = run;
  other.evaluation.mean = 1.5;
  const nlohmann::json two = nlohmann::json::parse(RlReportToJson({run, other}, 2));
  EXPECT_EQ(two["runs"].size(), 2u);
  EXPECT_EQ(two["mean"], 1.0);
  EXPECT_THAT(FormatRlReport({run, other}, 2), HasSubstr("mean of 2 seeds: 1.00 +- 0.71"));
  EXPECT_THAT(FormatRlReport({run}, 1), HasSubstr("over 2 fresh episodes"));
}

// Runs a job for a part of its steps, saves a checkpoint as SIGTERM does, and goes on from it.
TEST(CheckpointTest, ARunGoesOnFromItsCheckpoint) {
  for (const char* algorithm :
       {"{kind: ppo, unroll: 16}", "{kind: dqn, learning_starts: 100}", "{kind: impala, unroll: 8}"}) {
    SCOPED_TRACE(algorithm);
    testing::TempDir dir;
    RlSpec job =
        Job(absl::StrCat("env: cartpole\nstop: 6000\nevaluation: 5\n",
                         "policy: {hidden: [8], normalize_observations: true}\nalgorithm: ", algorithm));
    job.model_file = dir.File("model.safetensors");
    job.checkpoint_file = dir.File("checkpoint.safetensors");
    const std::unique_ptr<Learner> begun = *MakeLearner(job.learner);
    while (begun->env_steps() < 3000) TANDEM_ASSERT_OK(begun->Advance());
    TANDEM_ASSERT_OK(SaveCheckpoint(job, *begun, job.checkpoint_file));
    const LearnerState before = begun->state();
    EXPECT_GT(before.updates, 0u);
    EXPECT_GT(before.optimizer.steps, 0u);

    const std::unique_ptr<Learner> resumed = *MakeLearner(job.learner);
    TANDEM_ASSERT_OK(RestoreCheckpoint(job, *ReadCheckpoint(job), job.checkpoint_file, resumed.get()));
    const LearnerState after = resumed->state();
    EXPECT_EQ(after.env_steps, before.env_steps);
    EXPECT_EQ(after.updates, before.updates);
    EXPECT_EQ(after.version, before.version);
    EXPECT_EQ(after.target, before.target);
    EXPECT_EQ(after.optimizer.steps, before.optimizer.steps);
    EXPECT_EQ(after.optimizer.slots, before.optimizer.slots);
    const auto values = [](Learner& learner) {
      const absl::Span<float> all = learner.policy().parameters().values();
      return std::vector<float>(all.begin(), all.end());
    };
    EXPECT_EQ(values(*resumed), values(*begun));
    const absl::Span<float> averages = resumed->policy().parameters().running_averages();
    const absl::Span<float> wanted = begun->policy().parameters().running_averages();
    ASSERT_EQ(averages.size(), wanted.size());
    // PPO and DQN count the first observations of the new learner as well before its state is replaced.
    EXPECT_TRUE(std::equal(averages.begin(), averages.end(), wanted.begin()));

    const absl::StatusOr<RlReport> report = RunRl(job, {.silent = true, .resume = true});
    TANDEM_ASSERT_OK(report);
    EXPECT_GE(report->env_steps, 6000u);
    EXPECT_GT(report->updates, before.updates);
    EXPECT_LT(report->env_steps, before.env_steps + 6000);
    EXPECT_EQ(report->resumed_at, before.env_steps);
    EXPECT_THAT(FormatRlReport({*report}, 1),
                HasSubstr(absl::StrCat(", of which ", report->env_steps - before.env_steps, " in ")));
    TANDEM_EXPECT_OK(LoadModel(job.checkpoint_file));  // a checkpoint is a model as well
  }
}

TEST(CheckpointTest, ARequestToStopSavesOneAndWithoutOneARunBegins) {
  testing::TempDir dir;
  RlSpec job = Job("env: cartpole\nalgorithm: ppo\nstop: {env_steps: 1e12}\n");
  job.model_file = dir.File("model.safetensors");
  job.checkpoint_file = dir.File("sub/checkpoint.safetensors");
  const std::atomic<bool> stop{true};
  TANDEM_ASSERT_OK(RunRl(job, {.silent = true, .stop = &stop, .resume = true}));
  EXPECT_TRUE(std::filesystem::exists(job.checkpoint_file));
}

TEST(CheckpointTest, AFinishedRunGoesOnWithMoreStepsAndIsNotRepeated) {
  testing::TempDir dir;
  RlSpec job = Job("env: bandit\nalgorithm: ppo\nstop: 4000\nevaluation: 2\n");
  job.model_file = dir.File("model.safetensors");
  job.checkpoint_file = dir.File("checkpoint.safetensors");
  const RlRunOptions resume{.silent = true, .resume = true};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport first, RunRl(job, resume));
  const std::string model = *ReadFile(job.model_file);
  const absl::Status again = RunRl(job, resume).status();
  EXPECT_TRUE(IsRefusal(again)) << again;
  EXPECT_THAT(again.message(), AllOf(HasSubstr("nothing to train"), HasSubstr("stop.env_steps is 4000")));
  EXPECT_EQ(*ReadFile(job.model_file), model);
  // As of several seeds, of which some have finished.
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport same,
                              RunRl(job, {.silent = true, .resume = true, .refuse_finished = false}));
  EXPECT_EQ(same.parameters_hash, first.parameters_hash);
  EXPECT_EQ(same.evaluation.mean, first.evaluation.mean);

  job.learner.env_steps = 8000;
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport more, RunRl(job, resume));
  EXPECT_EQ(more.resumed_at, first.env_steps);
  EXPECT_GE(more.env_steps, 8000u);
  EXPECT_GT(more.updates, first.updates);

  std::filesystem::remove(job.checkpoint_file);
  const absl::Status without = RunRl(job, resume).status();
  EXPECT_TRUE(IsRefusal(without)) << without;
  EXPECT_THAT(without.message(), AllOf(HasSubstr(job.checkpoint_file), HasSubstr(job.model_file)));
}

TEST(CheckpointTest, ARunThatHasReachedItsReturnIsNotTrainedFurther) {
  testing::TempDir dir;
  RlSpec job =
      Job("env: bandit\nalgorithm: ppo\nstop: {env_steps: 100000, mean_return: -1e9}\nevaluation: 2\n");
  job.model_file = dir.File("model.safetensors");
  job.checkpoint_file = dir.File("checkpoint.safetensors");
  const RlRunOptions resume{.silent = true, .resume = true};
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport first, RunRl(job, resume));
  ASSERT_TRUE(first.stopped_early);
  EXPECT_THAT(RunRl(job, resume).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("stop.mean_return")));
  // As of several seeds, of which some have finished: twice, since the checkpoint goes on to say so.
  for (int round = 0; round < 2; ++round) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport same,
                                RunRl(job, {.silent = true, .resume = true, .refuse_finished = false}));
    EXPECT_EQ(same.updates, first.updates);
    EXPECT_EQ(same.parameters_hash, first.parameters_hash);
    EXPECT_TRUE(same.stopped_early);
  }
  job.mean_return = 1e9;
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport more, RunRl(job, resume));
  EXPECT_GE(more.env_steps, 100000u);
}

// A learner that fails after some calls, so that its run has no last checkpoint.
class FailingLearner : public Learner {
 public:
  explicit FailingLearner(std::unique_ptr<Learner> learner) : learner_(std::move(learner)) {}
  absl::Status Advance() override {
    if (++calls_ > 3) return absl::InternalError("the learner fails");
    TANDEM_RETURN_IF_ERROR(learner_->Advance());
    env_steps_ = learner_->env_steps();
    updates_ = learner_->updates();
    return absl::OkStatus();
  }
  Policy& policy() override { return learner_->policy(); }
  LearnerState state() const override { return learner_->state(); }
  absl::Status Restore(const LearnerState& state) override { return learner_->Restore(state); }
  Figures figures() const override { return learner_->figures(); }

 private:
  const std::unique_ptr<Learner> learner_;
  int calls_ = 0;
};

TEST(CheckpointTest, ACheckpointIsWrittenNowAndThen) {
  testing::TempDir dir;
  SimulatedClock clock;
  RlSpec job = Job("env: bandit\nalgorithm: ppo\nstop: 4000\nevaluation: 2\n");
  job.model_file.clear();
  job.checkpoint_file = dir.File("checkpoint.safetensors");
  FailingLearner first(*MakeLearner(job.learner));
  TANDEM_ASSERT_OK_AND_ASSIGN(const RlReport none,
                              RunLearner(job, {.silent = true, .clock = &clock}, &first, /*resumed=*/false));
  EXPECT_FALSE(none.failure.ok());
  EXPECT_FALSE(std::filesystem::exists(job.checkpoint_file));  // the time stands still
  job.checkpoint_every = absl::Nanoseconds(1);
  FailingLearner second(*MakeLearner(job.learner));
  TANDEM_ASSERT_OK(RunLearner(job, {.silent = true}, &second, /*resumed=*/false).status());
  EXPECT_TRUE(std::filesystem::exists(job.checkpoint_file));
}

TEST(CheckpointTest, OnesOfOtherJobsAndDamagedOnesAreRefused) {
  testing::TempDir dir;
  RlSpec job = Job("env: cartpole\nalgorithm: dqn\npolicy: {hidden: [8]}\n");
  const std::string path = dir.File("checkpoint.safetensors");
  const std::unique_ptr<Learner> learner = *MakeLearner(job.learner);
  TANDEM_ASSERT_OK(SaveCheckpoint(job, *learner, path));
  const std::string bytes = *ReadFile(path);
  const auto error = [&](const std::string& text, const std::string& with) {
    const RlSpec other = Job(text);
    const std::unique_ptr<Learner> fresh = *MakeLearner(other.learner);
    const absl::Status status = RestoreCheckpoint(other, with, path, fresh.get()).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  const std::string same = "env: cartpole\nalgorithm: dqn\npolicy: {hidden: [8]}\n";
  EXPECT_THAT(error("env: catch\nalgorithm: dqn\npolicy: {hidden: [8]}\n", bytes),
              AllOf(HasSubstr("has the environment 'cartpole', and the job 'catch'"), HasSubstr("--resume")));
  EXPECT_THAT(error("env: cartpole\nalgorithm: ppo\npolicy: {hidden: [8]}\n", bytes),
              HasSubstr("has the algorithm 'dqn', and the job 'ppo'"));
  EXPECT_THAT(error("env: cartpole\nalgorithm: dqn\npolicy: {hidden: [8, 8]}\n", bytes),
              HasSubstr("has the hidden layers '8', and the job '8,8'"));
  std::string damaged = bytes;
  damaged[damaged.size() - 100] = static_cast<char>(damaged[damaged.size() - 100] ^ 1);
  EXPECT_THAT(error(same, damaged), HasSubstr("the CRC-32 of its arrays differs"));
  EXPECT_THAT(error(same, bytes.substr(0, bytes.size() / 2)), HasSubstr("is damaged"));
  TANDEM_ASSERT_OK(SaveModel(job, learner->policy(), path));
  EXPECT_THAT(error(same, *ReadFile(path)), HasSubstr("so it is no checkpoint of a run"));
}

class ModelFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    job_ =
        Job("name: kept\nenv: pendulum\nalgorithm: ppo\npolicy: {hidden: [8, 4], normalize_observations: "
            "true}\n");
    job_.checkpoint_file = "runs/kept/checkpoint.safetensors";  // as the parser fills it in
    policy_ = *MakePolicy(job_.learner);
    CounterRandom random(1, 1);
    for (float& value : policy_->parameters().values()) value = static_cast<float>(random.Normal());
    for (float& value : policy_->parameters().running_averages())
      value = static_cast<float>(1 + random.UniformDouble());
    path_ = dir_.File("model.safetensors");
    TANDEM_ASSERT_OK(SaveModel(job_, *policy_, path_));
    bytes_ = *ReadFile(path_);
  }
  std::string LoadError(const std::string& bytes) {
    std::ofstream(path_, std::ios::binary) << bytes;
    const absl::Status status = LoadModel(path_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    return std::string(status.message());
  }
  testing::TempDir dir_;
  RlSpec job_;
  std::unique_ptr<Policy> policy_;
  std::string path_, bytes_;
};

TEST_F(ModelFileTest, ALoadedModelActsLikeTheSavedOne) {
  const absl::StatusOr<LoadedPolicy> loaded = LoadModel(path_);
  TANDEM_ASSERT_OK(loaded);
  EXPECT_EQ(loaded->job.name, "kept");
  EXPECT_EQ(RlJobToYaml(loaded->job), RlJobToYaml(job_));
  for (int i = 0; i < 20; ++i) {
    const std::vector<float> observation = {std::cos(static_cast<float>(i)), std::sin(static_cast<float>(i)),
                                            0.3f};
    float wanted = 0, got = 1;
    policy_->ActGreedily(observation, 1, {&wanted, 1});
    loaded->policy->ActGreedily(observation, 1, {&got, 1});
    EXPECT_EQ(got, wanted);
  }
}

// Reads the file without the code under test, as any reader of the format does.
TEST_F(ModelFileTest, TheFileIsInTheSafetensorsFormat) {
  uint64_t size = 0;
  std::memcpy(&size, bytes_.data(), sizeof size);
  EXPECT_EQ(size % 8, 0u);
  const nlohmann::json header = nlohmann::json::parse(bytes_.substr(8, size));
  uint64_t end = 0;
  for (const auto& [name, array] : header.items()) {
    if (name == "__metadata__") continue;
    EXPECT_EQ(array["dtype"], "F32");
    uint64_t elements = 1;
    for (const uint64_t extent : array["shape"]) elements *= extent;
    EXPECT_EQ(array["data_offsets"][1].get<uint64_t>() - array["data_offsets"][0].get<uint64_t>(),
              4 * elements);
    end = std::max(end, array["data_offsets"][1].get<uint64_t>());
  }
  EXPECT_EQ(bytes_.size(), 8 + size + end);
  EXPECT_EQ(header["policy.0.weight"]["shape"], nlohmann::json({8, 3}));
  EXPECT_TRUE(header.contains("policy.log_std"));
  EXPECT_TRUE(header.contains("observations.mean"));
  for (const auto& value : header["__metadata__"]) EXPECT_TRUE(value.is_string());
}

TEST_F(ModelFileTest, DamagedFilesAreRefusedByName) {
  EXPECT_THAT(LoadError(""), AllOf(HasSubstr(path_), HasSubstr("shorter than 8 bytes")));
  EXPECT_THAT(LoadError("not a model at all"), HasSubstr("its header would have"));
  EXPECT_THAT(LoadError(std::string("\2\0\0\0\0\0\0\0[]", 10)), HasSubstr("no JSON object"));
  EXPECT_THAT(LoadError(std::string("\2\0\0\0\0\0\0\0{}", 10)), HasSubstr("no metadata"));
  EXPECT_THAT(LoadError(bytes_.substr(0, bytes_.size() - 1)), HasSubstr("lies at bytes"));
  EXPECT_THAT(LoadError(absl::StrReplaceAll(bytes_, {{"[8,3]", "[3,8]"}})), HasSubstr("has the shape [3,8]"));
  EXPECT_THAT(LoadError(absl::StrReplaceAll(bytes_, {{"policy.0.weight", "policy.0.wight_"}})),
              HasSubstr("no array 'policy.0.weight'"));
  EXPECT_THAT(LoadError(absl::StrReplaceAll(bytes_, {{"F32", "F16"}})), HasSubstr("not of dtype F32"));
  std::string nan = bytes_;
  std::memset(nan.data() + nan.size() - 4, 0xff, 4);
  EXPECT_THAT(LoadError(nan), HasSubstr("not finite"));
  // The running count is the last array, the variance lies before it.
  std::string negative = bytes_;
  negative[negative.size() - 1] = static_cast<char>(negative[negative.size() - 1] | 0x80);
  EXPECT_THAT(LoadError(negative), AllOf(HasSubstr("'observations.count'"), HasSubstr("below 0")));
  negative = bytes_;
  negative[negative.size() - 5] = static_cast<char>(negative[negative.size() - 5] | 0x80);
  EXPECT_THAT(LoadError(negative), AllOf(HasSubstr("'observations.variance'"), HasSubstr("below 0")));
  // Values that lie in each other deeper than the stack is.
  const auto with_header = [](std::string text) {
    const uint64_t bytes = text.size();
    return std::string(reinterpret_cast<const char*>(&bytes), sizeof bytes) + text;
  };
  const std::string deep = std::string(100000, '[') + std::string(100000, ']');
  EXPECT_THAT(LoadError(with_header("{\"__metadata__\":" + deep + "}")), HasSubstr("no JSON object"));
  EXPECT_THAT(LoadError(with_header(std::string(1 << 20, ' '))), HasSubstr("its header would have"));
  // Whatever byte of the header is wrong, loading ends with a status.
  uint64_t size = 0;
  std::memcpy(&size, bytes_.data(), sizeof size);
  for (size_t i = 0; i < 8 + size; i += 7) {
    std::string changed = bytes_;
    changed[i] = static_cast<char>(changed[i] ^ 0x15);
    std::ofstream(path_, std::ios::binary) << changed;
    LoadModel(path_).status().IgnoreError();
  }
  EXPECT_EQ(LoadModel(dir_.File("none")).status().code(), absl::StatusCode::kNotFound);
}

// Returns the bytes of a model with another job.
std::string WithJob(const std::string& bytes, const std::string& job) {
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  nlohmann::ordered_json header = nlohmann::ordered_json::parse(bytes.substr(8, size));
  header["__metadata__"]["job"] = job;
  const std::string text = header.dump();
  const uint64_t text_size = text.size();
  return std::string(reinterpret_cast<const char*>(&text_size), 8) + text + bytes.substr(8 + size);
}

TEST_F(ModelFileTest, AJobThatNamesAFileOrHugeLayersIsRefused) {
  EXPECT_THAT(LoadError(WithJob(bytes_, "env: pendulum\nalgorithm: ppo\nextend: /dev/zero\n")),
              HasSubstr("'extend' is only allowed in a job file of its own"));
  EXPECT_THAT(LoadError(WithJob(bytes_, "env: pendulum\nalgorithm: ppo\npolicy: {hidden: [4000, 4000]}\n")),
              HasSubstr("bytes of values"));
}

TEST_F(ModelFileTest, AModelOfAnotherEnvironmentIsRefused) {
  EnvironmentOptions other;
  other.kind = "cartpole";
  const absl::StatusOr<Evaluation> evaluation = Evaluate(*policy_, other, 3, 1);
  EXPECT_EQ(evaluation.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(evaluation.status().message(),
              AllOf(HasSubstr("'cartpole' has 4 numbers an observation and 2 choices"),
                    HasSubstr("made for one with 3 numbers an observation and 1 real numbers an action")));
}

TEST(EvaluationTest, ItsEpisodesDependOnItsSeedOnly) {
  const RlSpec job = Job("env: cartpole\nalgorithm: ppo\n");
  const std::unique_ptr<Policy> policy = *MakePolicy(job.learner);
  const Evaluation first = *Evaluate(*policy, job.learner.environment, 20, 5);
  const Evaluation again = *Evaluate(*policy, job.learner.environment, 20, 5);
  const Evaluation fewer = *Evaluate(*policy, job.learner.environment, 8, 5);
  const Evaluation other = *Evaluate(*policy, job.learner.environment, 20, 6);
  EXPECT_EQ(first.returns, again.returns);
  EXPECT_TRUE(std::equal(fewer.returns.begin(), fewer.returns.end(), first.returns.begin()));
  EXPECT_NE(first.returns, other.returns);
  double sum = 0;
  for (const double value : first.returns) sum += value;
  EXPECT_DOUBLE_EQ(first.mean, sum / 20);
}

TEST(EvaluationTest, EpisodesThatNeverEndCountWithTheirReturnSoFar) {
  RlSpec job = Job("env: {kind: pendulum, max_steps: 0}\nalgorithm: ppo\npolicy: {hidden: [2]}\n");
  const std::unique_ptr<Policy> policy = *MakePolicy(job.learner);
  const absl::StatusOr<Evaluation> evaluation = Evaluate(*policy, job.learner.environment, 1, 1);
  TANDEM_ASSERT_OK(evaluation);
  EXPECT_EQ(evaluation->unfinished, 1u);
  EXPECT_EQ(evaluation->mean_length, kMostSteps);
  EXPECT_LT(evaluation->mean, -1);
  RlReport report{.job = "j"};
  report.evaluation = *evaluation;
  EXPECT_THAT(FormatRlReport({report}, 1), HasSubstr("1 had not ended after 100000 steps"));
}

}  // namespace
}  // namespace tandem::rl
