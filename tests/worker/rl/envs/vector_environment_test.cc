// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/envs/vector_environment.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Counts its steps: the observation is their number, the reward 10 times it. Terminates after `length` steps.
// Returns `bad` instead of the reward of step `bad_step`.
class Counter : public Environment {
 public:
  Counter(int length, int bad_step = -1, bool bad_observation = false)
      : length_(length), bad_step_(bad_step), bad_observation_(bad_observation) {}
  EnvironmentSpec spec() const override { return {.observation_size = 1, .actions = {.choices = 2}}; }
  void Reset(CounterRandom&) override { step_ = 0; }
  StepResult Step(absl::Span<const float>, CounterRandom&) override {
    ++step_;
    const bool bad = step_ == bad_step_ && !bad_observation_;
    return {.reward = bad ? std::numeric_limits<double>::quiet_NaN() : 10.0 * step_,
            .terminated = step_ == length_};
  }
  void Observe(absl::Span<float> observation) const override {
    observation[0] = step_ == bad_step_ && bad_observation_ ? INFINITY : static_cast<float>(step_);
  }
  std::vector<double> state() const override { return {}; }
  absl::Status SetState(absl::Span<const double>) override { return absl::OkStatus(); }

 private:
  const int length_, bad_step_;
  const bool bad_observation_;
  int step_ = 0;
};

const std::vector<float> kActions = {0, 0};

TEST(VectorEnvironmentTest, TerminationAndTruncationAreApartAndTheLastObservationIsKept) {
  VectorEnvironment limited(
      "counter", [] { return std::make_unique<Counter>(5); }, /*max_steps=*/3, 2, 1);
  for (int step = 1; step <= 3; ++step) {
    TANDEM_ASSERT_OK(limited.Step(kActions));
    EXPECT_THAT(limited.terminated(), ElementsAre(0, 0));
    EXPECT_THAT(limited.truncated(), ElementsAre(step == 3, step == 3));
    EXPECT_THAT(limited.final_observations(), ElementsAre(step, step));
    EXPECT_THAT(limited.observations(), ElementsAre(step % 3, step % 3));  // reset at once
    EXPECT_THAT(limited.rewards(), ElementsAre(10 * step, 10 * step));
  }
  ASSERT_EQ(limited.ended().size(), 2u);
  EXPECT_EQ(limited.ended()[1].environment, 1u);
  EXPECT_EQ(limited.ended()[1].episode_return, 60);
  EXPECT_EQ(limited.ended()[1].length, 3);

  VectorEnvironment unlimited(
      "counter", [] { return std::make_unique<Counter>(3); }, /*max_steps=*/0, 2, 1);
  for (int step = 0; step < 3; ++step) TANDEM_ASSERT_OK(unlimited.Step(kActions));
  EXPECT_THAT(unlimited.terminated(), ElementsAre(1, 1));
  EXPECT_THAT(unlimited.truncated(), ElementsAre(0, 0));

  VectorEnvironment both(
      "counter", [] { return std::make_unique<Counter>(3); }, /*max_steps=*/3, 2, 1);
  for (int step = 0; step < 3; ++step) TANDEM_ASSERT_OK(both.Step(kActions));
  EXPECT_THAT(both.terminated(), ElementsAre(1, 1));
  EXPECT_THAT(both.truncated(), ElementsAre(1, 1));
  TANDEM_ASSERT_OK(both.Step(kActions));
  EXPECT_TRUE(both.ended().empty());
}

TEST(VectorEnvironmentTest, ACopyDoesNotDependOnTheNumberOfCopies) {
  const EnvironmentOptions options = Environments().Default("cartpole");
  const auto many = *VectorEnvironment::Create(options, 7, 3),
             few = *VectorEnvironment::Create(options, 2, 3);
  const auto other = *VectorEnvironment::Create(options, 2, 4);
  EXPECT_NE(other->observations()[0], few->observations()[0]);
  for (int step = 0; step < 200; ++step) {
    std::vector<float> actions(7);
    for (size_t i = 0; i < 7; ++i) actions[i] = static_cast<float>((step + static_cast<int>(i)) % 3 == 0);
    TANDEM_ASSERT_OK(many->Step(actions));
    TANDEM_ASSERT_OK(few->Step(absl::MakeConstSpan(actions).subspan(0, 2)));
    for (size_t i = 0; i < 8; ++i) ASSERT_EQ(many->observations()[i], few->observations()[i]);
  }
}

TEST(VectorEnvironmentTest, ARewardThatIsNoNumberIsAnErrorThatNamesTheStep) {
  VectorEnvironment environments(
      "broken", [] { return std::make_unique<Counter>(9, 2); }, 0, 2, 1);
  TANDEM_ASSERT_OK(environments.Step(kActions));
  const absl::Status status = environments.Step(kActions);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("environment 'broken'"), HasSubstr("reward nan"),
                                      HasSubstr("step 2 of episode 1 of copy 0")));
}

TEST(VectorEnvironmentTest, AnInfiniteObservationIsAnError) {
  VectorEnvironment environments(
      "broken", [] { return std::make_unique<Counter>(9, 1, true); }, 0, 2, 1);
  EXPECT_THAT(environments.Step(kActions).message(), HasSubstr("observation inf"));
}

TEST(VectorEnvironmentTest, ActionsThatDoNotExistAreRefused) {
  const auto make = [] { return std::make_unique<Counter>(9); };
  for (const float wrong : {2.0f, -1.0f, 0.5f, NAN}) {
    VectorEnvironment environments("counter", make, 0, 2, 1);
    EXPECT_EQ(environments.Step({0.0f, wrong}).code(), absl::StatusCode::kInvalidArgument) << wrong;
  }
  VectorEnvironment environments("counter", make, 0, 2, 1);
  EXPECT_THAT(environments.Step({0.0f}).message(), HasSubstr("takes 2 numbers, not 1"));
  const auto pendulum = *VectorEnvironment::Create(Environments().Default("pendulum"), 1, 1);
  EXPECT_EQ(pendulum->Step({NAN}).code(), absl::StatusCode::kInvalidArgument);
  TANDEM_EXPECT_OK(pendulum->Step({100.0f}));  // clipped
}

}  // namespace
}  // namespace tandem::rl
