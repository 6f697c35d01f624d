// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/job/rl_parser.h"

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/read_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "tests/worker/job/document_tables.h"
#include "worker/rl/job/rl_schema.h"

namespace tandem::rl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kJob[] = R"(name: test
env: {kind: bandit, arms: 6}
policy: {hidden: [8], activation: relu, normalize_observations: true}
algorithm: {kind: dqn, lr: 0.01, batch: 16, target: plain}
actors: {envs: 3}
stop: {env_steps: 1000, mean_return: 0.9}
evaluation: {episodes: 7}
seed: {all: 5, evaluation: 9}
model: /tmp/model.safetensors
checkpoint: {every_seconds: 7}
)";

TEST(RlParserTest, EveryGroupIsRead) {
  const absl::StatusOr<RlSpec> job = ParseRlJob(kJob, "job.yaml");
  TANDEM_ASSERT_OK(job);
  EXPECT_EQ(job->name, "test");
  EXPECT_EQ(job->learner.environment.kind, "bandit");
  EXPECT_EQ(job->learner.environment.arms, 6);
  EXPECT_EQ(job->learner.environment.max_steps, 0);  // the kind's default
  EXPECT_THAT(job->learner.policy.hidden, ElementsAre(8));
  EXPECT_EQ(job->learner.policy.activation, worker::HiddenActivation::kRelu);
  EXPECT_TRUE(job->learner.policy.normalize_observations);
  EXPECT_EQ(job->learner.algorithm.kind, "dqn");
  EXPECT_EQ(job->learner.algorithm.lr, 0.01);
  EXPECT_EQ(job->learner.algorithm.batch, 16);
  EXPECT_EQ(job->learner.algorithm.target, "plain");
  EXPECT_EQ(job->learner.algorithm.max_gradient_norm, 10);  // the kind's default
  EXPECT_EQ(job->learner.environments, 3u);
  EXPECT_EQ(job->learner.env_steps, 1000u);
  EXPECT_EQ(job->mean_return, 0.9);
  EXPECT_EQ(job->evaluation_episodes, 7);
  EXPECT_EQ(job->learner.seeds.environment, 5u);
  EXPECT_EQ(job->learner.seeds.policy, 5u);
  EXPECT_EQ(job->learner.seeds.evaluation, 9u);
  EXPECT_EQ(job->model_file, "/tmp/model.safetensors");
  EXPECT_EQ(job->checkpoint_file, "/tmp/checkpoint.safetensors");
  EXPECT_EQ(job->checkpoint_every, absl::Seconds(7));
}

TEST(RlParserTest, AJobComesBackAfterWriting) {
  for (const char* text : {kJob, "env: pendulum\nalgorithm: ppo\nseed: 4\n",
                           "env: catch\nalgorithm: {kind: impala, queue: 99}\nactors: {count: 3, lockstep: "
                           "true, inference: server}\n"}) {
    const absl::StatusOr<RlSpec> job = ParseRlJob(text, "job.yaml");
    TANDEM_ASSERT_OK(job);
    const std::string written = RlJobToYaml(*job);
    const absl::StatusOr<RlSpec> again = ParseRlJob(written, "again.yaml");
    TANDEM_ASSERT_OK(again) << written;
    EXPECT_EQ(RlJobToYaml(*again), written);
    EXPECT_EQ(again->learner.seeds.evaluation, job->learner.seeds.evaluation);
    EXPECT_EQ(again->learner.algorithm.lr, job->learner.algorithm.lr);
  }
}

TEST(RlParserTest, EveryMistakeIsNamedWithItsLine) {
  const absl::Status status = ParseRlJob(
                                  "env: cartpool\n"
                                  "algorithm: {kind: ppo, clip: -1, batch: 3}\n"
                                  "policy: {hidden: [0]}\n"
                                  "actors: {envs: 0}\n"
                                  "learner: 3\n",
                                  "job.yaml")
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      status.message(),
      AllOf(HasSubstr("job.yaml:1: field 'kind' in 'env' is 'cartpool'"),
            HasSubstr("did you mean 'cartpole'"), HasSubstr("job.yaml:2: field 'clip'"),
            HasSubstr("greater than 0"), HasSubstr("unknown field 'batch' in 'algorithm' of kind 'ppo'"),
            HasSubstr("job.yaml:3: field 'hidden'"), HasSubstr("job.yaml:4: field 'envs'"),
            HasSubstr("job.yaml:5: unknown field 'learner'")));
}

TEST(RlParserTest, MissingKindsAreNamed) {
  const absl::Status status = ParseRlJob("name: x\n", "job.yaml").status();
  EXPECT_THAT(status.message(), AllOf(HasSubstr("field 'env' is missing: write 'env: {kind: ...}'"),
                                      HasSubstr("field 'algorithm' is missing")));
  EXPECT_THAT(ParseRlJob("env: {max_steps: 3}\nalgorithm: ppo\n", "job.yaml").status().message(),
              HasSubstr("field 'kind' in 'env' is missing: it is one of cartpole"));
}

TEST(RlParserTest, APolicyOfImpossibleSizeIsRefused) {
  const std::string job = kJob;
  for (const std::string hidden : {"[8192, 8192]", "[20000, 30000]", "[65536, 65536, 65536]"}) {
    EXPECT_THAT(ParseRlJob(job, "job.yaml", {"policy.hidden=" + hidden}).status().message(),
                AllOf(HasSubstr("policy.hidden"), HasSubstr("weights between hidden layers")));
  }
  EXPECT_TRUE(ParseRlJob(job, "job.yaml", {"policy.hidden=[4096, 4096]"}).ok());
  EXPECT_THAT(ParseRlJob(",", "job.yaml").status().message(), HasSubstr("one YAML document"));
  EXPECT_THAT(ParseWholeRlJob(",", "weights").status().message(), HasSubstr("one YAML document"));
}

TEST(RlParserTest, FieldsThatContradictEachOtherAreRefused) {
  const auto error = [](const std::string& text) {
    return std::string(ParseRlJob(text, "job.yaml").status().message());
  };
  EXPECT_THAT(error("env: pendulum\nalgorithm: dqn\n"),
              AllOf(HasSubstr("cannot handle the environment 'pendulum'"), HasSubstr("use ppo")));
  EXPECT_THAT(
      error("env: catch\nalgorithm: {kind: dqn, learning_starts: 500, replay_size: 100}\n"),
      HasSubstr("field 'learning_starts' in 'algorithm' of kind 'dqn' must be at most 'replay_size', 100"));
  EXPECT_THAT(error("env: catch\nalgorithm: {kind: dqn, epsilon_start: 0.1, epsilon_end: 0.5}\n"),
              HasSubstr("must be at most 'epsilon_start'"));
  EXPECT_THAT(error("env: catch\nactors: 1\nalgorithm: {kind: ppo, unroll: 2, minibatches: 4}\n"),
              HasSubstr("divides 2 steps"));
  EXPECT_THAT(error("env: bricks\nalgorithm: {kind: ppo, unroll: 1048576}\nactors: 65536\n"),
              HasSubstr("has unrolls of"));
  EXPECT_THAT(error("env: bricks\nalgorithm: {kind: dqn, replay_size: 1073741824}\n"),
              HasSubstr("keeps 'replay_size' transitions of"));
  EXPECT_THAT(
      error("env: cartpole\nalgorithm: {kind: impala, staleness: queue, queue: 1048576, unroll: 2000}\n"),
      HasSubstr("lets 'queue' unrolls of 128000 bytes wait"));
  EXPECT_THAT(error("env: cartpole\nalgorithm: {kind: impala, max_lag: 1000000000, unroll: 2000}\n"),
              HasSubstr("lets ('max_lag' + 1) x 'batch' unrolls of 128000 bytes wait"));
  EXPECT_THAT(error("env: catch\nalgorithm: {kind: impala, batch: 32}\n"),
              HasSubstr("field 'queue' in 'algorithm' of kind 'impala' must be at least 'batch', 32"));
  EXPECT_THAT(error("env: catch\nalgorithm: ppo\nactors: {count: 2}\n"),
              HasSubstr("the algorithm 'ppo' acts by itself"));
  EXPECT_THAT(error("env: catch\nalgorithm: dqn\nactors: {lockstep: true}\n"),
              HasSubstr("impala has actors"));
  EXPECT_THAT(error("env: catch\nalgorithm: ppo\nname: a/b\n"), HasSubstr("field 'name' is 'a/b'"));
}

TEST(RlParserTest, OverridesAndExtendWork) {
  const absl::StatusOr<RlSpec> job = LoadRlJob(absl::StrCat(TANDEM_JOBS_DIR, "/cartpole_ppo.yaml"),
                                               {"algorithm.lr=0.5", "seed=12", "actors=2"});
  TANDEM_ASSERT_OK(job);
  EXPECT_EQ(job->learner.algorithm.lr, 0.5);
  EXPECT_EQ(job->learner.seeds.policy, 12u);
  EXPECT_EQ(job->learner.environments, 2u);
  const absl::StatusOr<RlSpec> extended = ParseRlJob(
      absl::StrCat("extend: ", TANDEM_JOBS_DIR, "/cartpole_ppo.yaml\nname: other\n"), "other.yaml");
  TANDEM_ASSERT_OK(extended);
  EXPECT_EQ(extended->name, "other");
  EXPECT_EQ(extended->learner.environment.kind, "cartpole");
}

TEST(RlJobFilesTest, EveryFileIsAJobNamedAfterIt) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(TANDEM_JOBS_DIR)) {
    if (entry.path().extension() != ".yaml") continue;
    if (!absl::StrContains(ReadFile(entry.path().string()).value_or(""), "\nalgorithm:")) continue;
    ++files;
    const absl::StatusOr<RlSpec> job = LoadRlJob(entry.path().string());
    TANDEM_EXPECT_OK(job);
    if (job.ok()) {
      EXPECT_EQ(job->name, entry.path().stem());
    }
  }
  EXPECT_GE(files, 6);
}

TEST(RlReferenceTest, TheTablesOfTheDocumentAreThoseOfTheSchema) {
  worker::JobFields fields;
  worker::FieldLister lister(&fields, "");
  RlSpec job;
  DescribeRlJob(lister, job);
  worker::CompareWithDocument(
      absl::StrCat(TANDEM_JOBS_DIR, "/../docs/rl.md"), "docs/rl.md",
      {{"job", worker::FieldTable(fields, "", {"extend", "name", "model", "log_every_seconds"})},
       {"environments", worker::KindTables(fields, "env")},
       {"policy", worker::FieldTable(fields, "policy")},
       {"algorithms", worker::KindTables(fields, "algorithm")},
       {"actors", worker::FieldTable(fields, "actors")},
       {"stop", worker::FieldTable(fields, "stop")},
       {"evaluation", worker::FieldTable(fields, "evaluation")},
       {"checkpoint", worker::FieldTable(fields, "checkpoint")},
       {"seed", worker::FieldTable(fields, "seed")}});
}

}  // namespace
}  // namespace tandem::rl
