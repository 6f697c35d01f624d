// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <memory>
#include <numbers>

#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

// A cart on a rail that must keep a pole upright. The constants and the explicit Euler steps are those of
// Gymnasium's CartPole-v1.
class CartPole : public Environment {
 public:
  EnvironmentSpec spec() const override { return {.observation_size = 4, .actions = {.choices = 2}}; }

  void Reset(CounterRandom& random) override {
    for (double& value : state_) value = -0.05 + 0.1 * random.UniformDouble();
  }

  StepResult Step(absl::Span<const float> action, CounterRandom&) override {
    constexpr double kGravity = 9.8, kCartMass = 1.0, kPoleMass = 0.1, kHalfLength = 0.5, kForce = 10.0,
                     kInterval = 0.02, kMaxPosition = 2.4;
    constexpr double kMaxAngle = 12.0 * 2.0 * std::numbers::pi / 360.0;
    constexpr double kMass = kCartMass + kPoleMass, kPoleMoment = kPoleMass * kHalfLength;
    auto& [position, velocity, angle, angular_velocity] = state_;
    const double force = action[0] > 0.5f ? kForce : -kForce;
    const double sine = std::sin(angle), cosine = std::cos(angle);
    const double push = (force + kPoleMoment * (angular_velocity * angular_velocity) * sine) / kMass;
    const double angular_acceleration = (kGravity * sine - cosine * push) /
                                        (kHalfLength * (4.0 / 3.0 - kPoleMass * (cosine * cosine) / kMass));
    const double acceleration = push - kPoleMoment * angular_acceleration * cosine / kMass;
    position += kInterval * velocity;
    velocity += kInterval * acceleration;
    angle += kInterval * angular_velocity;
    angular_velocity += kInterval * angular_acceleration;
    const bool fallen = std::abs(position) > kMaxPosition || std::abs(angle) > kMaxAngle;
    return {.reward = 1.0, .terminated = fallen};
  }

  void Observe(absl::Span<float> observation) const override {
    for (size_t i = 0; i < state_.size(); ++i) observation[i] = static_cast<float>(state_[i]);
  }

  std::vector<double> state() const override { return {state_.begin(), state_.end()}; }
  absl::Status SetState(absl::Span<const double> state) override {
    TANDEM_RETURN_IF_ERROR(CheckStateSize(state, state_.size()));
    for (size_t i = 0; i < state_.size(); ++i) state_[i] = state[i];
    return absl::OkStatus();
  }

 private:
  std::array<double, 4> state_ = {};  // position, velocity, angle, angular velocity
};

}  // namespace

EnvironmentKind CartPoleKind() {
  return {.name = "cartpole",
          .summary = "keep a pole upright on a cart; 1 a step; Gymnasium's CartPole-v1",
          .reference = "Barto, Sutton and Anderson, IEEE SMC 1983",
          .fields = {MaxSteps(500)},
          .build = [](const EnvironmentOptions&) -> std::unique_ptr<Environment> {
            return std::make_unique<CartPole>();
          }};
}

}  // namespace tandem::rl
