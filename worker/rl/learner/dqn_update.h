// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_LEARNER_DQN_UPDATE_H_
#define TANDEM_WORKER_RL_LEARNER_DQN_UPDATE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "replay/table/batch.h"
#include "replay/table/table_options.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/policy/q_network.h"

namespace tandem::rl {

// The name of the table of transitions.
inline constexpr char kTransitionTable[] = "transitions";

// Returns the columns of a transition (NStepTransition).
std::vector<replay::Column> TransitionColumns(const EnvironmentSpec& environment);
// Returns the table of transitions, or one of the `shards` equal parts of it.
replay::TableOptions TransitionTableOptions(const LearnerOptions& options, int shards = 1);
// Returns the probability of a random action after `env_steps` steps of all copies.
double EpsilonAt(const LearnerOptions& options, uint64_t env_steps);
// Returns that of actor `index` of `actors` (Ape-X): EpsilonAt to the power of 1 + algorithm.epsilon_spread x
// index / (actors - 1), so that the actors explore more and less.
double ActorEpsilonAt(const LearnerOptions& options, uint64_t env_steps, size_t index, size_t actors);

// The updates of a deep Q-network (dqn.cc): knows neither environments nor replay tables. Not thread-safe.
class DqnUpdate {
 public:
  static absl::StatusOr<std::unique_ptr<DqnUpdate>> Create(const LearnerOptions& options,
                                                           const EnvironmentSpec& environment);

  // Writes the gradients of the weighted mean loss over a batch of transitions to policy().parameters(), and
  // the priorities of its items to priorities(). `env_steps` decides the exponent of importance weights.
  // Internal, which names the column, if the batch is not one of transitions of this environment.
  absl::Status ComputeGradients(const replay::Batch& batch, uint64_t env_steps);
  // The error of each item of the last batch, as its priority.
  absl::Span<const double> priorities() const { return priorities_; }
  // Clips the gradients and applies them with the learning rate of `env_steps`. GradientNotFinite.
  absl::Status Apply(uint64_t env_steps);
  // Makes the target network the one that learns. Is done by Create.
  void CopyToTarget();

  QNetwork& policy() { return policy_; }
  uint64_t updates() const { return updates_; }
  // Returns a state without env_steps and version.
  LearnerState state() const;
  // Goes on from a state, as Learner::Restore does.
  absl::Status Restore(const LearnerState& state);
  // Returns the figures of the last update. `env_steps` decides the probability of random actions.
  Figures figures(uint64_t env_steps) const;

 private:
  DqnUpdate(const LearnerOptions& options, const EnvironmentSpec& environment);

  const LearnerOptions options_;
  QNetwork policy_, target_;
  const size_t observation_size_;
  std::unique_ptr<worker::DenseOptimizer> optimizer_;
  uint64_t updates_ = 0;
  std::vector<float> observations_, next_observations_, d_values_;
  std::vector<size_t> next_choices_;
  std::vector<double> priorities_;
  double error_sum_ = 0, mean_error_ = 0, mean_q_ = 0, gradient_norm_ = 0, learning_rate_ = 0;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_LEARNER_DQN_UPDATE_H_
