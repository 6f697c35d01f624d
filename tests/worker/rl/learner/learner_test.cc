// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/learner/learner.h"

#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/nn/gemm.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/learner/registry.h"

namespace tandem::rl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LearnerOptions Small(const std::string& environment, const std::string& algorithm) {
  LearnerOptions options;
  options.environment = Environments().Default(environment);
  options.algorithm = Algorithms().Default(algorithm);
  options.environments = 4;
  options.policy.hidden = {16};
  options.env_steps = 4000;
  if (algorithm == "ppo") options.algorithm.unroll = 32;
  if (algorithm == "dqn") options.algorithm.learning_starts = 200;
  if (algorithm == "impala") {
    options.actors = 2;
    options.lockstep = true;
    options.algorithm.batch = 3;  // not a divisor of what an actor makes
    options.algorithm.unroll = 7;
  }
  return options;
}

// Runs a learner to its end and returns its parameters, or an error's text.
std::vector<float> Parameters(const LearnerOptions& options) {
  worker::UseOneBlasThread();
  absl::StatusOr<std::unique_ptr<Learner>> learner = MakeLearner(options);
  TANDEM_EXPECT_OK(learner);
  while ((*learner)->env_steps() < options.env_steps) {
    const absl::Status advanced = (*learner)->Advance();
    TANDEM_EXPECT_OK(advanced);
    if (!advanced.ok()) break;
  }
  const absl::Span<float> values = (*learner)->policy().parameters().values();
  return {values.begin(), values.end()};
}

TEST(LearnerTest, ARunHasTheSameBitsEachTimeAndOnEveryThread) {
  for (const char* algorithm : {"ppo", "dqn", "impala"}) {
    const LearnerOptions options = Small("cartpole", algorithm);
    const std::vector<float> alone = Parameters(options);
    constexpr size_t kThreads = 3;
    std::vector<std::vector<float>> together(kThreads);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) threads.emplace_back([&, i] { together[i] = Parameters(options); });
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<float>& parameters : together) EXPECT_EQ(parameters, alone) << algorithm;
  }
}

TEST(LearnerTest, EachSeedChangesWhatItIsFor) {
  for (const char* algorithm : {"ppo", "dqn", "impala"}) {
    LearnerOptions options = Small("cartpole", algorithm);
    options.env_steps = 1000;
    const std::vector<float> base = Parameters(options);
    LearnerOptions other = options;
    other.seeds.environment = 2;
    EXPECT_NE(Parameters(other), base) << algorithm;
    other = options;
    other.seeds.policy = 2;
    EXPECT_NE(Parameters(other), base) << algorithm;
    other = options;
    other.seeds.evaluation = 2;  // the training does not see it
    EXPECT_EQ(Parameters(other), base) << algorithm;
  }
}

TEST(LearnerTest, AllAlgorithmsFindTheBestArmOfABandit) {
  for (const char* algorithm : {"ppo", "dqn", "impala"}) {
    LearnerOptions options = Small("bandit", algorithm);
    options.env_steps = 20000;
    options.algorithm.lr = 0.01;
    const std::unique_ptr<Learner> learner = *MakeLearner(options);
    while (learner->env_steps() < options.env_steps) TANDEM_ASSERT_OK(learner->Advance());
    float action = -1;
    learner->policy().ActGreedily({1.0f}, 1, {&action, 1});
    EXPECT_EQ(action, 3.0f) << algorithm;
  }
}

// The best policy of the chain goes right everywhere.
TEST(LearnerTest, DqnLearnsTheValuesOfTheChain) {
  for (const int n_step : {1, 3}) {
    for (const double priority_exponent : {0.0, 0.6}) {
      for (const char* target : {n_step == 1 ? "plain" : "double"}) {
        LearnerOptions options = Small("chain", "dqn");
        options.env_steps = 8000;
        options.algorithm.gamma = 0.9;
        options.algorithm.lr = 3e-3;
        options.algorithm.target = target;
        options.algorithm.priority_exponent = priority_exponent;
        options.algorithm.n_step = n_step;
        options.algorithm.target_every = 200;
        options.algorithm.epsilon_fraction = 0.5;
        const std::unique_ptr<Learner> learner = *MakeLearner(options);
        while (learner->env_steps() < options.env_steps) TANDEM_ASSERT_OK(learner->Advance());
        for (int state = 0; state < 5; ++state) {
          std::vector<float> observation(5);
          observation[static_cast<size_t>(state)] = 1;
          float action = -1;
          learner->policy().ActGreedily(observation, 1, {&action, 1});
          if (state >= 2) {  // the greedy policy comes to these from the middle
            EXPECT_EQ(action, 1.0f) << target << " " << priority_exponent << " " << n_step << " " << state;
          }
        }
      }
    }
  }
}

TEST(LearnerTest, ParametersThatDivergeAreAnError) {
  LearnerOptions options = Small("pendulum", "ppo");
  options.algorithm.reward_scale = 1e37;  // the squared error is infinite
  const std::unique_ptr<Learner> learner = *MakeLearner(options);
  absl::Status status;
  while (status.ok() && learner->env_steps() < options.env_steps) status = learner->Advance();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("of ppo is not finite"), HasSubstr("algorithm.lr")));
}

TEST(LearnerTest, ActorsOnThreadsStayWithinTheLagAndEndWithTheLearner) {
  worker::UseOneBlasThread();
  LearnerOptions options = Small("bandit", "impala");
  options.lockstep = false;
  options.actors = 4;
  options.env_steps = 20000;
  options.algorithm.lr = 0.01;
  for (const auto& [staleness, max_lag] :
       {std::pair<const char*, int>{"queue", 8}, {"pace", 8}, {"pace", 1}}) {
    options.algorithm.staleness = staleness;
    options.algorithm.max_lag = max_lag;
    const std::unique_ptr<Learner> learner = *MakeLearner(options);
    uint64_t episodes = 0;
    while (learner->env_steps() < options.env_steps) {
      TANDEM_ASSERT_OK(learner->Advance());
      episodes += learner->TakeEpisodes().size();
    }
    EXPECT_EQ(episodes, learner->env_steps());  // each pull of a bandit is an episode
    ASSERT_TRUE(learner->lag().has_value());
    EXPECT_LE(learner->lag()->greatest, static_cast<uint64_t>(max_lag));
    EXPECT_GT(learner->lag()->unrolls, learner->lag()->dropped);
    if (options.algorithm.staleness == "pace") {
      EXPECT_EQ(learner->lag()->dropped, 0u);
    }
    EXPECT_GT(learner->updates(), 100u);
  }
}

TEST(LearnerTest, OptionsThatCannotWorkAreRefused) {
  const auto error = [](const LearnerOptions& options) {
    const absl::StatusOr<std::unique_ptr<Learner>> learner = MakeLearner(options);
    EXPECT_EQ(learner.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(learner.status(), MakePolicy(options).ok() ? learner.status() : MakePolicy(options).status());
    return std::string(learner.status().message());
  };
  LearnerOptions options = Small("pendulum", "dqn");
  EXPECT_THAT(error(options), AllOf(HasSubstr("environment 'pendulum'"), HasSubstr("use ppo")));
  options = Small("catch", "ppo");
  options.algorithm.lr = 0;
  EXPECT_THAT(error(options), HasSubstr("algorithm.lr is 0"));
  options = Small("catch", "ppo");
  options.algorithm.minibatches = 1000;
  EXPECT_THAT(error(options), HasSubstr("algorithm.minibatches is 1000"));
  options = Small("catch", "dqn");
  options.actors = 2;
  EXPECT_THAT(error(options), HasSubstr("actors.count is 2, but dqn has no actors"));
  options = Small("catch", "impala");
  options.actors = 0;
  EXPECT_THAT(error(options), HasSubstr("actors.count is 0"));
  options = Small("catch", "impala");
  options.algorithm.batch = 100;
  EXPECT_THAT(error(options), HasSubstr("algorithm.queue is 16; it must be at least batch, 100"));
  options = Small("catch", "ppo");
  options.environments = 0;
  EXPECT_THAT(error(options), HasSubstr("actors.envs is 0"));
  options = Small("catch", "dqn");
  options.algorithm.replay_size = 100;
  EXPECT_THAT(error(options), HasSubstr("learning_starts is 200; it must be at most replay_size, 100"));
  options = Small("catch", "dqn");
  options.algorithm.kind = "pqo";
  EXPECT_THAT(error(options), HasSubstr("did you mean 'ppo'"));
}

}  // namespace
}  // namespace tandem::rl
