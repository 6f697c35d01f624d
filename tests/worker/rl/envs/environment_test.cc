// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/envs/environment.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Environment> Make(const std::string& kind) {
  EnvironmentOptions options = Environments().Default(kind);
  return *MakeEnvironment(options);
}

// Compares an environment with a trajectory of Gymnasium's (record_trajectories.py), in two ways: it follows
// the whole trajectory from the first state, and it repeats each single step from the recorded state before
// it. numpy's and the C library's sines differ in the last bit, which a long trajectory of Acrobot, a chaotic
// system, amplifies.
void CompareWithRecording(const std::string& kind, double step_tolerance, double trajectory_tolerance) {
  std::ifstream file(absl::StrCat(TANDEM_RL_GOLDENS, "/", kind, ".txt"));
  ASSERT_TRUE(file) << kind;
  const std::unique_ptr<Environment> whole = Make(kind), single = Make(kind);
  const size_t size = whole->state().size();
  CounterRandom random(1, 1);
  std::vector<double> before;
  int steps = 0, limit = Environments().Default(kind).max_steps, in_episode = 0, terminations = 0;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    std::vector<double> numbers;
    for (double number; words >> number;) numbers.push_back(number);
    if (word == "reset") {
      ASSERT_EQ(numbers.size(), size);
      TANDEM_ASSERT_OK(whole->SetState(numbers));
      before = numbers;
      in_episode = 0;
    } else if (word == "step") {
      ASSERT_EQ(numbers.size(), 4 + size);
      const float action = static_cast<float>(numbers[0]);
      const std::vector<double> after(numbers.begin() + 4, numbers.end());
      TANDEM_ASSERT_OK(single->SetState(before));
      for (Environment* const environment : {whole.get(), single.get()}) {
        const double tolerance = environment == whole.get() ? trajectory_tolerance : step_tolerance;
        const StepResult result = environment->Step({&action, 1}, random);
        ASSERT_NEAR(result.reward, numbers[1], tolerance) << kind << " step " << steps;
        ASSERT_EQ(result.terminated, numbers[2] == 1) << kind << " step " << steps;
        const std::vector<double> state = environment->state();
        for (size_t i = 0; i < size; ++i)
          ASSERT_NEAR(state[i], after[i], tolerance) << kind << " step " << steps << " number " << i;
      }
      before = after;
      ++steps;
      ++in_episode;
      terminations += numbers[2] == 1 ? 1 : 0;
      EXPECT_EQ(numbers[3] == 1, in_episode == limit) << "the default time limit is that of Gymnasium";
    }
  }
  EXPECT_GE(steps, 400);
  EXPECT_EQ(terminations > 0, kind != "pendulum");
}

TEST(EnvironmentTest, CartPoleFollowsGymnasiumStepForStep) { CompareWithRecording("cartpole", 1e-14, 1e-10); }
TEST(EnvironmentTest, AcrobotFollowsGymnasiumStepForStep) { CompareWithRecording("acrobot", 1e-13, 1e-6); }
TEST(EnvironmentTest, PendulumFollowsGymnasiumStepForStep) { CompareWithRecording("pendulum", 1e-13, 1e-9); }

TEST(EnvironmentTest, ARandomPolicyCatchesAFifthOfTheBalls) {
  const std::unique_ptr<Environment> environment = Make("catch");
  // Exact: each of the five columns in which a ball may begin, against a paddle that stays in the middle.
  double sum = 0;
  for (int column = 0; column < 5; ++column) {
    CounterRandom random(1, 1);
    TANDEM_ASSERT_OK(environment->SetState({0, static_cast<double>(column), 2}));
    const float stay = 1;
    for (int step = 1; step <= 9; ++step) {
      const StepResult result = environment->Step({&stay, 1}, random);
      EXPECT_EQ(result.terminated, step == 9);
      sum += result.reward;
    }
  }
  EXPECT_EQ(sum / 5, -0.6);
}

TEST(EnvironmentTest, CatchCanAlwaysBeWon) {
  const std::unique_ptr<Environment> environment = Make("catch");
  for (uint64_t episode = 0; episode < 50; ++episode) {
    CounterRandom random(2, episode);
    environment->Reset(random);
    StepResult result;
    while (!result.terminated) {
      const std::vector<double> state = environment->state();
      const float action = static_cast<float>(1 + (state[1] > state[2]) - (state[1] < state[2]));
      result = environment->Step({&action, 1}, random);
    }
    EXPECT_EQ(result.reward, 1.0);
  }
}

TEST(EnvironmentTest, TheObservationOfCatchShowsBallAndPaddle) {
  const std::unique_ptr<Environment> environment = Make("catch");
  TANDEM_ASSERT_OK(environment->SetState({3, 4, 1}));
  std::vector<float> seen(50);
  environment->Observe(absl::MakeSpan(seen));
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i == 3 * 5 + 4 || i == 9 * 5 + 1 ? 1.0f : 0.0f);
}

TEST(EnvironmentTest, ABanditPaysTheMeanOfItsArm) {
  const std::unique_ptr<Environment> environment = Make("bandit");
  CounterRandom random(1, 1);
  for (int arm = 0; arm < 4; ++arm) {
    const float action = static_cast<float>(arm);
    const StepResult result = environment->Step({&action, 1}, random);
    EXPECT_TRUE(result.terminated);
    EXPECT_DOUBLE_EQ(result.reward, arm / 3.0);
  }
}

TEST(EnvironmentTest, AChainEndsAtBothEndsAndPaysAtTheRightOne) {
  const std::unique_ptr<Environment> environment = Make("chain");
  for (const float action : {0.0f, 1.0f}) {
    CounterRandom random(1, 1);
    environment->Reset(random);
    StepResult result;
    for (int step = 1; step <= 3; ++step) {
      ASSERT_FALSE(result.terminated);
      result = environment->Step({&action, 1}, random);
    }
    EXPECT_TRUE(result.terminated);
    EXPECT_EQ(result.reward, action);
  }
}

// Returns the column in which the ball next comes down to the row above the paddle's. Until then the ball
// does not depend on the paddle. `scratch` is a copy of the game to try it with.
double Landing(Environment& scratch, const std::vector<double>& state) {
  TANDEM_EXPECT_OK(scratch.SetState(state));
  CounterRandom random(1, 1);
  const float stay = 1;
  for (int step = 0; step < 100; ++step) {
    const std::vector<double> before = scratch.state();
    scratch.Step({&stay, 1}, random);
    const std::vector<double> after = scratch.state();
    if (after[1] == 8 && before[1] == 7) return after[2];  // [1] is the row, [2] the column
  }
  ADD_FAILURE() << "the ball does not come down";
  return 0;
}

// A player who goes where the ball comes down never loses it, and goes on hitting bricks.
TEST(EnvironmentTest, AGoodPlayerOfBricksNeverLosesTheBall) {
  EnvironmentOptions options = Environments().Default("bricks");
  options.sticky = 0;
  const std::unique_ptr<Environment> environment = *MakeEnvironment(options),
                                     scratch = *MakeEnvironment(options);
  CounterRandom random(4, 4);
  environment->Reset(random);
  double bricks = 0;
  for (int step = 0; step < 3000; ++step) {
    const std::vector<double> state = environment->state();
    // The cell of the paddle that meets the ball changes, since the ball's path would repeat itself
    // otherwise.
    const double wanted = std::clamp(Landing(*scratch, state) - (step / 53 % 2), 0.0, 8.0);
    const float action = static_cast<float>(1 + (wanted > state[0]) - (wanted < state[0]));
    const StepResult result = environment->Step({&action, 1}, random);
    bricks += result.reward;
    ASSERT_FALSE(result.terminated) << "step " << step;
  }
  EXPECT_GT(bricks, 25);
}

TEST(EnvironmentTest, StickyActionsOfBricksRepeatTheLastOne) {
  EnvironmentOptions options = Environments().Default("bricks");
  options.sticky = 0.5;
  const std::unique_ptr<Environment> environment = *MakeEnvironment(options);
  int repeated = 0;
  constexpr int kTrials = 2000;
  for (int trial = 0; trial < kTrials; ++trial) {
    CounterRandom random(5, static_cast<uint64_t>(trial));
    environment->Reset(random);
    const double paddle = environment->state()[0];
    const float left = 0;  // the action before the first one is to stay
    environment->Step({&left, 1}, random);
    repeated += environment->state()[0] == paddle ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(repeated) / kTrials, 0.5, 0.05);
}

TEST(EnvironmentTest, AStateOfAnotherSizeIsRefused) {
  for (const auto& kind : Environments().kinds()) {
    const std::unique_ptr<Environment> environment = Make(std::string(kind.name));
    const std::vector<double> before = environment->state();
    EXPECT_EQ(environment->SetState(std::vector<double>(before.size() + 1)).code(),
              absl::StatusCode::kInvalidArgument)
        << kind.name;
    EXPECT_EQ(environment->state(), before) << kind.name;
    TANDEM_EXPECT_OK(environment->SetState(before));
  }
}

TEST(EnvironmentTest, UnknownKindsAndWrongFieldsAreNamed) {
  EXPECT_THAT(MakeEnvironment({.kind = "cartpool"}).status().message(), HasSubstr("did you mean 'cartpole'"));
  EXPECT_THAT(MakeEnvironment({.kind = "bandit", .max_steps = 0, .arms = 1}).status().message(),
              HasSubstr("env.arms is 1"));
}

}  // namespace
}  // namespace tandem::rl
