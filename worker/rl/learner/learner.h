// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_LEARNER_LEARNER_H_
#define TANDEM_WORKER_RL_LEARNER_LEARNER_H_

// A learning algorithm with the environments in which it acts.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/envs/vector_environment.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// Names an algorithm and gives its parameters. Fields that the kind does not have are ignored.
struct AlgorithmOptions {
  std::string kind = "ppo";  // a kind of Algorithms() (registry.h)
  double lr = 2.5e-4, lr_end = 0;
  double adam_epsilon = 1e-5;
  double gamma = 0.99;
  double max_gradient_norm = 0.5;
  double reward_scale = 1;
  // ppo
  int unroll = 128, epochs = 4, minibatches = 4;
  double lambda = 0.95, clip = 0.2, entropy = 0.01, value_coefficient = 0.5;
  // dqn
  int n_step = 3, batch = 64, replay_size = 50000, learning_starts = 1000, update_every = 4,
      target_every = 2000;
  double epsilon_start = 1, epsilon_end = 0.05, epsilon_fraction = 0.1;
  std::string target = "double";
  double priority_exponent = 0.6, importance_exponent = 0.4;
};

// The seeds of the random numbers for different purposes. None of them influences what another one decides.
struct Seeds {
  uint64_t environment = 1;  // first states, random steps
  uint64_t policy = 1;       // parameters, exploration, order of minibatches, samples from replay
  uint64_t evaluation = 1;   // the environments of the evaluation
};

struct LearnerOptions {
  EnvironmentOptions environment;
  size_t environments = 8;  // copies
  PolicyOptions policy;
  AlgorithmOptions algorithm;
  Seeds seeds;
  uint64_t env_steps = 500000;  // planned; the schedules of rates end there
};

using Figures = std::vector<std::pair<absl::string_view, double>>;  // names are string literals

// Not thread-safe. Uses only the calling thread; a run gives the same parameters each time it is repeated.
class Learner {
 public:
  virtual ~Learner() = default;

  // Collects steps and learns from them, for a fraction of a second at most. Errors: those of
  // VectorEnvironment::Step; Internal if a gradient is not finite. The learner must not be used any more
  // after an error.
  virtual absl::Status Advance() = 0;
  virtual Policy& policy() = 0;
  // Returns figures of the last update, by the tags of TensorBoard.
  virtual Figures figures() const = 0;

  // Steps of all copies of the environment, and updates of the parameters.
  uint64_t env_steps() const { return env_steps_; }
  uint64_t updates() const { return updates_; }
  // Returns the episodes that have ended since the last call.
  std::vector<Episode> TakeEpisodes() { return std::exchange(episodes_, {}); }

 protected:
  // Counts a step of `environments` and collects its episodes.
  void CountStep(const VectorEnvironment& environments) {
    env_steps_ += environments.count();
    episodes_.insert(episodes_.end(), environments.ended().begin(), environments.ended().end());
  }

  uint64_t env_steps_ = 0, updates_ = 0;

 private:
  std::vector<Episode> episodes_;
};

// Makes the learner of options.algorithm.kind. InvalidArgument names the field that is wrong: one out of its
// range, fields that contradict each other, or an algorithm that cannot handle the environment's actions.
absl::StatusOr<std::unique_ptr<Learner>> MakeLearner(const LearnerOptions& options);
// Makes the policy that such a learner trains, with its first parameters.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const LearnerOptions& options);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_LEARNER_LEARNER_H_
