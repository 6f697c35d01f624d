// SPDX-License-Identifier: Apache-2.0
#include <memory>

#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

// A bandit of several arms; an episode is one pull. Arm i of n has the mean reward i / (n - 1). The
// observation is always 1. Exact gradients of a policy are known, so tests of learners use it.
class Bandit : public Environment {
 public:
  Bandit(int arms, double noise) : arms_(arms), noise_(noise) {}

  EnvironmentSpec spec() const override { return {.observation_size = 1, .actions = {.choices = arms_}}; }
  void Reset(CounterRandom&) override {}
  StepResult Step(absl::Span<const float> action, CounterRandom& random) override {
    const double mean = static_cast<double>(action[0]) / (arms_ - 1);
    return {.reward = noise_ == 0 ? mean : mean + noise_ * random.Normal(), .terminated = true};
  }
  void Observe(absl::Span<float> observation) const override { observation[0] = 1.0f; }
  std::vector<double> state() const override { return {}; }
  absl::Status SetState(absl::Span<const double> state) override { return CheckStateSize(state, 0); }

 private:
  const int arms_;
  const double noise_;
};

}  // namespace

EnvironmentKind BanditKind() {
  return {.name = "bandit",
          .summary = "one pull an episode; arm i of n pays i / (n - 1)",
          .fields = {MaxSteps(0),
                     MemberField<&EnvironmentOptions::arms>({.name = "arms",
                                                             .help = "number of arms",
                                                             .range = Between(2, 10000),
                                                             .default_value = 4}),
                     MemberField<&EnvironmentOptions::noise>({.name = "noise",
                                                              .help = "standard deviation of a reward",
                                                              .range = AtLeast(0),
                                                              .default_value = 0})},
          .build = [](const EnvironmentOptions& options) -> std::unique_ptr<Environment> {
            return std::make_unique<Bandit>(options.arms, options.noise);
          }};
}

}  // namespace tandem::rl
