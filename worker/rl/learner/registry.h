// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_LEARNER_REGISTRY_H_
#define TANDEM_WORKER_RL_LEARNER_REGISTRY_H_

// The descriptions of the algorithms. To add one, write a file with a function that returns its description,
// and extend the list in learner.cc.

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/config_field.h"
#include "base/kind_registry.h"
#include "worker/rl/learner/learner.h"

namespace tandem::rl {

// How to make the parts of an algorithm. The options have been checked, except for what `supports` checks.
struct AlgorithmParts {
  // Returns InvalidArgument if the algorithm cannot handle the environment's actions.
  absl::Status (*supports)(const EnvironmentSpec& environment);
  absl::StatusOr<std::unique_ptr<Learner>> (*learner)(const LearnerOptions& options);
  std::unique_ptr<Policy> (*policy)(const EnvironmentSpec& environment, const PolicyOptions& options,
                                    uint64_t seed);
  // True if in one process several actors act for one learner; otherwise the learner acts itself.
  bool has_actors = false;
  // True if `tandem run` can run actors and learners as processes of their own.
  bool has_roles = false;
};

using AlgorithmKind = ConfigKind<AlgorithmOptions, AlgorithmParts>;
using AlgorithmRegistry = KindRegistry<AlgorithmOptions, AlgorithmParts>;
const AlgorithmRegistry& Algorithms();

// The fields that every algorithm has, with the default values of one. A default of `lr_end` of 0 anneals the
// rate.
std::vector<ConfigField<AlgorithmOptions>> CommonFields(double lr, double max_gradient_norm);
// Returns the fields of the loss of an actor-critic, besides the policy's own: `entropy` and
// `value_coefficient`.
std::vector<ConfigField<AlgorithmOptions>> ActorCriticLossFields();
// Makes the policy of an actor-critic (AlgorithmParts::policy).
std::unique_ptr<Policy> MakeActorCritic(const EnvironmentSpec& environment, const PolicyOptions& options,
                                        uint64_t seed);

// Returns the learning rate after `env_steps` steps: linear from lr to lr_end.
double LearningRateAt(const LearnerOptions& options, uint64_t env_steps);
// Returns Internal that names the algorithm and the update.
absl::Status GradientNotFinite(const LearnerOptions& options, uint64_t update);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_LEARNER_REGISTRY_H_
