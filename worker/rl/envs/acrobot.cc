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

constexpr double kPi = std::numbers::pi;

// Two links that hang from a fixed point; a torque at the joint between them must swing the tip above a line.
// Equations of Sutton and Barto's book, with masses and lengths of 1 and moments of inertia of 1, integrated
// by one classical Runge-Kutta step of 0.2 s, as in Gymnasium's Acrobot-v1.
class Acrobot : public Environment {
 public:
  EnvironmentSpec spec() const override { return {.observation_size = 6, .actions = {.choices = 3}}; }

  void Reset(CounterRandom& random) override {
    for (double& value : state_) value = -0.1 + 0.2 * random.UniformDouble();
  }

  StepResult Step(absl::Span<const float> action, CounterRandom&) override {
    constexpr double kInterval = 0.2;
    const double torque = static_cast<double>(action[0]) - 1.0;
    const State k1 = Derivative(state_, torque);
    const State k2 = Derivative(Plus(state_, kInterval / 2, k1), torque);
    const State k3 = Derivative(Plus(state_, kInterval / 2, k2), torque);
    const State k4 = Derivative(Plus(state_, kInterval, k3), torque);
    for (size_t i = 0; i < state_.size(); ++i)
      state_[i] += kInterval / 6.0 * (k1[i] + 2 * k2[i] + 2 * k3[i] + k4[i]);
    for (const size_t angle : {0, 1}) {
      while (state_[angle] > kPi) state_[angle] -= 2 * kPi;
      while (state_[angle] < -kPi) state_[angle] += 2 * kPi;
    }
    state_[2] = std::clamp(state_[2], -4 * kPi, 4 * kPi);
    state_[3] = std::clamp(state_[3], -9 * kPi, 9 * kPi);
    const bool up = -std::cos(state_[0]) - std::cos(state_[1] + state_[0]) > 1.0;
    return {.reward = up ? 0.0 : -1.0, .terminated = up};
  }

  void Observe(absl::Span<float> observation) const override {
    const double seen[] = {std::cos(state_[0]), std::sin(state_[0]), std::cos(state_[1]),
                           std::sin(state_[1]), state_[2],           state_[3]};
    for (size_t i = 0; i < 6; ++i) observation[i] = static_cast<float>(seen[i]);
  }

  std::vector<double> state() const override { return {state_.begin(), state_.end()}; }
  absl::Status SetState(absl::Span<const double> state) override {
    TANDEM_RETURN_IF_ERROR(CheckStateSize(state, state_.size()));
    for (size_t i = 0; i < state_.size(); ++i) state_[i] = state[i];
    return absl::OkStatus();
  }

 private:
  using State = std::array<double, 4>;  // two angles, two angular velocities

  static State Plus(const State& state, double factor, const State& change) {
    State sum;
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = state[i] + factor * change[i];
    return sum;
  }

  static State Derivative(const State& state, double torque) {
    constexpr double kGravity = 9.8, kCenter = 0.5, kInertia = 1.0;
    const auto& [first, second, first_speed, second_speed] = state;
    const double sine = std::sin(second), cosine = std::cos(second);
    // d1, d2, phi1 and phi2 of the book's equations.
    const double d1 = kCenter * kCenter + (1.0 + kCenter * kCenter + 2 * kCenter * cosine) + 2 * kInertia;
    const double d2 = (kCenter * kCenter + kCenter * cosine) + kInertia;
    const double phi2 = kCenter * kGravity * std::cos(first + second - kPi / 2.0);
    const double phi1 = -kCenter * (second_speed * second_speed) * sine -
                        2 * kCenter * second_speed * first_speed * sine +
                        (kCenter + 1.0) * kGravity * std::cos(first - kPi / 2) + phi2;
    const double second_acceleration =
        (torque + d2 / d1 * phi1 - kCenter * (first_speed * first_speed) * sine - phi2) /
        (kCenter * kCenter + kInertia - d2 * d2 / d1);
    const double first_acceleration = -(d2 * second_acceleration + phi1) / d1;
    return {first_speed, second_speed, first_acceleration, second_acceleration};
  }

  State state_ = {};
};

}  // namespace

EnvironmentKind AcrobotKind() {
  return {.name = "acrobot",
          .summary =
              "swing two links up by the joint between them; -1 a step until the tip is up; Gymnasium's "
              "Acrobot-v1",
          .reference = "Sutton, NIPS 1996",
          .fields = {MaxSteps(500)},
          .build = [](const EnvironmentOptions&) -> std::unique_ptr<Environment> {
            return std::make_unique<Acrobot>();
          }};
}

}  // namespace tandem::rl
