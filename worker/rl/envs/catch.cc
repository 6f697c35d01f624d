// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

// A ball falls through a grid of 10 rows and 5 columns, one row a step, and a paddle in the last row must be
// below it. The actions move the paddle left, not, or right. The observation is the grid: 1 at the ball and
// at the paddle. The ball begins in a random column, the paddle in the middle, so a policy that does not see
// the ball gets 2/5 - 1 = -0.6 on average.
class Catch : public Environment {
 public:
  EnvironmentSpec spec() const override {
    return {.observation_size = kRows * kColumns, .actions = {.choices = 3}};
  }

  void Reset(CounterRandom& random) override {
    row_ = 0;
    column_ = static_cast<int>(random.Below(kColumns));
    paddle_ = kColumns / 2;
  }

  StepResult Step(absl::Span<const float> action, CounterRandom&) override {
    paddle_ = std::clamp(paddle_ + static_cast<int>(action[0]) - 1, 0, kColumns - 1);
    ++row_;
    if (row_ < kRows - 1) return {};
    return {.reward = column_ == paddle_ ? 1.0 : -1.0, .terminated = true};
  }

  void Observe(absl::Span<float> observation) const override {
    std::fill(observation.begin(), observation.end(), 0.0f);
    observation[row_ * kColumns + column_] = 1.0f;
    observation[(kRows - 1) * kColumns + paddle_] = 1.0f;
  }

  std::vector<double> state() const override {
    return {static_cast<double>(row_), static_cast<double>(column_), static_cast<double>(paddle_)};
  }
  absl::Status SetState(absl::Span<const double> state) override {
    TANDEM_RETURN_IF_ERROR(CheckStateSize(state, 3));
    row_ = static_cast<int>(std::clamp(state[0], 0.0, kRows - 1.0));
    column_ = static_cast<int>(std::clamp(state[1], 0.0, kColumns - 1.0));
    paddle_ = static_cast<int>(std::clamp(state[2], 0.0, kColumns - 1.0));
    return absl::OkStatus();
  }

 private:
  static constexpr int kRows = 10, kColumns = 5;
  int row_ = 0, column_ = 0, paddle_ = kColumns / 2;
};

}  // namespace

EnvironmentKind CatchKind() {
  return {.name = "catch",
          .summary = "catch a ball that falls through a grid of 10 x 5; 1 or -1 at the end, after 9 steps",
          .reference = "Osband et al., bsuite, ICLR 2020",
          .fields = {MaxSteps(0)},
          .build = [](const EnvironmentOptions&) -> std::unique_ptr<Environment> {
            return std::make_unique<Catch>();
          }};
}

}  // namespace tandem::rl
