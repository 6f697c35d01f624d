// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ENVS_ENVIRONMENT_H_
#define TANDEM_WORKER_RL_ENVS_ENVIRONMENT_H_

// An environment of reinforcement learning: one copy, without time limit. vector_environment.h runs many
// copies and adds the limit.

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/random.h"

namespace tandem::rl {

// The actions of an environment: either one of `choices`, or `dimensions` real numbers, each in [low, high].
struct ActionSpace {
  int choices = 0;     // 0: the actions are real numbers
  int dimensions = 1;  // 1 if the actions are choices
  double low = 0, high = 0;

  bool discrete() const { return choices > 0; }
  bool operator==(const ActionSpace&) const = default;
};

struct EnvironmentSpec {
  size_t observation_size = 0;
  ActionSpace actions;
};

// The outcome of a step. `terminated` means that the episode has come to its own end, after which there are
// no rewards. It does not mean that a time limit has cut the episode off.
struct StepResult {
  double reward = 0;
  bool terminated = false;
};

// The state is a list of float64 numbers, so that tests can compare environments number by number. An object
// is used by one thread; separate objects are independent.
class Environment {
 public:
  virtual ~Environment() = default;

  virtual EnvironmentSpec spec() const = 0;
  // Starts an episode. Draws its first state from `random`.
  virtual void Reset(CounterRandom& random) = 0;
  // Does one step. `action` has spec().actions.dimensions numbers; a choice is its index, and must be less
  // than `choices`. Real actions outside of [low, high] are clipped. Requires that the episode has begun and
  // has not terminated. `random` is for environments whose steps are random.
  virtual StepResult Step(absl::Span<const float> action, CounterRandom& random) = 0;
  // Writes what the agent sees of the state, spec().observation_size numbers.
  virtual void Observe(absl::Span<float> observation) const = 0;

  virtual std::vector<double> state() const = 0;
  // Sets the state. InvalidArgument, with nothing changed, if it has another number of values.
  virtual absl::Status SetState(absl::Span<const double> state) = 0;
};

// Names an environment and gives its parameters. Fields that the kind does not have are ignored.
struct EnvironmentOptions {
  std::string kind = "cartpole";  // a kind of Environments() (registry.h)
  int max_steps = 500;            // an episode is truncated after this many steps; 0: never
  int arms = 4;                   // bandit
  double noise = 0;               // bandit: standard deviation of a reward
  double sticky = 0.1;  // bricks: probability that the last action is repeated instead of the new one
};

// Makes a copy of the environment. InvalidArgument names the field that is wrong, or lists the kinds.
absl::StatusOr<std::unique_ptr<Environment>> MakeEnvironment(const EnvironmentOptions& options);

// Returns InvalidArgument for SetState unless `state` has `size` values.
absl::Status CheckStateSize(absl::Span<const double> state, size_t size);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ENVS_ENVIRONMENT_H_
