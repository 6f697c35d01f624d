// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

// A pendulum that a limited torque must swing up and keep upright, as in Gymnasium's Pendulum-v1. The angle
// is 0 when the pendulum is upright; it is not wrapped.
class Pendulum : public Environment {
 public:
  EnvironmentSpec spec() const override {
    return {.observation_size = 3, .actions = {.dimensions = 1, .low = -kMaxTorque, .high = kMaxTorque}};
  }

  void Reset(CounterRandom& random) override {
    state_[0] = std::numbers::pi * (2 * random.UniformDouble() - 1);
    state_[1] = 2 * random.UniformDouble() - 1;
  }

  StepResult Step(absl::Span<const float> action, CounterRandom&) override {
    constexpr double kGravity = 10.0, kInterval = 0.05, kMaxSpeed = 8.0;
    auto& [angle, speed] = state_;
    const double torque = std::clamp(static_cast<double>(action[0]), -kMaxTorque, kMaxTorque);
    const double pi = std::numbers::pi;
    // The angle in [-pi, pi), with the remainder's sign that of the divisor.
    double wrapped = std::fmod(angle + pi, 2 * pi);
    if (wrapped < 0) wrapped += 2 * pi;
    wrapped -= pi;
    const double cost = wrapped * wrapped + 0.1 * (speed * speed) + 0.001 * (torque * torque);
    speed += (3 * kGravity / 2.0 * std::sin(angle) + 3.0 * torque) * kInterval;
    speed = std::clamp(speed, -kMaxSpeed, kMaxSpeed);
    angle += speed * kInterval;
    return {.reward = -cost, .terminated = false};
  }

  void Observe(absl::Span<float> observation) const override {
    observation[0] = static_cast<float>(std::cos(state_[0]));
    observation[1] = static_cast<float>(std::sin(state_[0]));
    observation[2] = static_cast<float>(state_[1]);
  }

  std::vector<double> state() const override { return {state_.begin(), state_.end()}; }
  absl::Status SetState(absl::Span<const double> state) override {
    TANDEM_RETURN_IF_ERROR(CheckStateSize(state, state_.size()));
    for (size_t i = 0; i < state_.size(); ++i) state_[i] = state[i];
    return absl::OkStatus();
  }

 private:
  static constexpr double kMaxTorque = 2.0;
  std::array<double, 2> state_ = {};  // angle, angular velocity
};

}  // namespace

EnvironmentKind PendulumKind() {
  return {.name = "pendulum",
          .summary = "swing a pendulum up by a torque in [-2, 2] and hold it; Gymnasium's Pendulum-v1",
          .fields = {MaxSteps(200)},
          .build = [](const EnvironmentOptions&) -> std::unique_ptr<Environment> {
            return std::make_unique<Pendulum>();
          }};
}

}  // namespace tandem::rl
