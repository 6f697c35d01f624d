// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_LEARNER_IMPALA_UPDATE_H_
#define TANDEM_WORKER_RL_LEARNER_IMPALA_UPDATE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "replay/table/batch.h"
#include "replay/table/table_options.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/policy/actor_critic.h"

namespace tandem::rl {

// Returns true if the actors of a job need tickets for their unrolls: `algorithm.staleness` is "pace". Actors
// in lockstep with the learner need none.
bool IsPaced(const LearnerOptions& options);
// Returns the table of unrolls from which `learners` learners sample. Each unroll is sampled once. In a paced
// table no unroll lags by more than algorithm.max_lag versions when it is used. This requires that an update
// takes algorithm.batch unrolls for each learner, and that a commit follows each update. Otherwise
// algorithm.queue unrolls may wait.
replay::TableOptions UnrollTableOptions(const LearnerOptions& options, const EnvironmentSpec& environment,
                                        int learners = 1);
// Returns how many of `learners` sample from server `index` of `servers`: learner i from server i modulo
// their number.
inline int LearnersOf(int index, int servers, int learners) {
  return index < learners ? (learners - index + servers - 1) / servers : 0;
}

// Returns the options of actor `index` of a job.
UnrollActorOptions ActorOptions(const LearnerOptions& options, size_t index);

// The updates of IMPALA (Espeholt et al., ICML 2018): an actor-critic whose targets V-trace corrects for the
// lag of the actors. Knows neither actors nor queue. Not thread-safe.
class ImpalaUpdate {
 public:
  static absl::StatusOr<std::unique_ptr<ImpalaUpdate>> Create(const LearnerOptions& options,
                                                              const EnvironmentSpec& environment);

  // Writes the gradients of the mean loss over a batch of unrolls to policy().parameters(). `version` is the
  // number of the newest weights: unrolls that lag behind it by more than algorithm.max_lag count as zeros. A
  // batch without any other has a gradient of zeros. Errors: Internal, which names the column, if the batch
  // is not one of unrolls of this environment, and for numbers that are not finite.
  absl::Status ComputeGradients(const replay::Batch& batch, uint64_t version);
  // Returns whether the last batch had an unroll that counted.
  bool has_gradients() const { return used_ > 0; }
  // Clips the gradients and applies them with the learning rate of `env_steps`. GradientNotFinite.
  absl::Status Apply(uint64_t env_steps);

  ActorCritic& policy() { return policy_; }
  worker::DenseOptimizer& optimizer() { return *optimizer_; }
  uint64_t updates() const { return updates_; }
  // Goes on from a state, as Learner::Restore does.
  absl::Status Restore(const LearnerState& state);
  const LagFigures& lag() const { return lag_; }
  Figures figures() const;

 private:
  ImpalaUpdate(const LearnerOptions& options, const EnvironmentSpec& environment);
  // Copies the batch to the columns below, time by time.
  absl::Status Take(const replay::Batch& batch, uint64_t version);
  void Estimate();

  const LearnerOptions options_;
  ActorCritic policy_;
  std::unique_ptr<worker::DenseOptimizer> optimizer_;
  const size_t observation_size_, action_size_;
  uint64_t updates_ = 0;
  LagFigures lag_;
  size_t steps_ = 0, unrolls_ = 0, used_ = 0;  // of the last batch
  // The transitions, time by time. Observations are normalized.
  std::vector<float> observations_, next_observations_, actions_, log_probabilities_, rewards_, discounts_,
      values_, next_values_, ratios_, errors_, advantages_;
  std::vector<uint8_t> ends_, counts_;  // `counts_` of each unroll: its lag is not too great
  std::vector<size_t> bootstrap_rows_;  // the rows whose next value is that of their own next observation
  std::vector<float> bootstrap_observations_, bootstrap_values_;
  double policy_loss_ = 0, value_loss_ = 0, entropy_ = 0, mean_ratio_ = 0, gradient_norm_ = 0,
         learning_rate_ = 0, batch_lag_ = 0;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_LEARNER_IMPALA_UPDATE_H_
