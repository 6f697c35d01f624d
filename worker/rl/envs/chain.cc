// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

// Five states in a row; an episode begins in the middle one. The actions go left and right. The reward is 1
// for leaving at the right end, and 0 otherwise. The observation is one-hot. The values of every policy are
// the solution of five linear equations, which tests of estimators compare with.
class Chain : public Environment {
 public:
  EnvironmentSpec spec() const override { return {.observation_size = kStates, .actions = {.choices = 2}}; }
  void Reset(CounterRandom&) override { at_ = kStates / 2; }
  StepResult Step(absl::Span<const float> action, CounterRandom&) override {
    const int next = at_ + (action[0] > 0.5f ? 1 : -1);
    if (next < 0) return {.reward = 0.0, .terminated = true};
    if (next >= kStates) return {.reward = 1.0, .terminated = true};
    at_ = next;
    return {};
  }
  void Observe(absl::Span<float> observation) const override {
    std::fill(observation.begin(), observation.end(), 0.0f);
    observation[at_] = 1.0f;
  }
  std::vector<double> state() const override { return {static_cast<double>(at_)}; }
  absl::Status SetState(absl::Span<const double> state) override {
    TANDEM_RETURN_IF_ERROR(CheckStateSize(state, 1));
    at_ = static_cast<int>(std::clamp(state[0], 0.0, kStates - 1.0));
    return absl::OkStatus();
  }

 private:
  static constexpr int kStates = 5;
  int at_ = kStates / 2;
};

}  // namespace

EnvironmentKind ChainKind() {
  return {.name = "chain",
          .summary = "walk along five states; 1 for leaving at the right end",
          .reference = "Sutton and Barto, 2018, example 6.2",
          .fields = {MaxSteps(100)},
          .build = [](const EnvironmentOptions&) -> std::unique_ptr<Environment> {
            return std::make_unique<Chain>();
          }};
}

}  // namespace tandem::rl
