// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/learner/learner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/actor_critic.h"

namespace tandem::rl {

AlgorithmKind PpoKind();
AlgorithmKind DqnKind();
AlgorithmKind ImpalaKind();

const AlgorithmRegistry& Algorithms() {
  static const auto* const registry =
      new AlgorithmRegistry("algorithm", {PpoKind(), DqnKind(), ImpalaKind()});
  return *registry;
}

std::vector<ConfigField<AlgorithmOptions>> CommonFields(double lr, double max_gradient_norm) {
  using O = AlgorithmOptions;
  return {
      MemberField<&O::lr>({.name = "lr",
                           .help = "learning rate of Adam at the start",
                           .range = Above(0),
                           .default_value = lr}),
      MemberField<&O::lr_end>({.name = "lr_end",
                               .help = "learning rate after `stop.env_steps`, which is approached linearly",
                               .range = AtLeast(0),
                               .default_value = 0}),
      MemberField<&O::adam_epsilon>({.name = "adam_epsilon",
                                     .help = "added to the square root that divides Adam's step",
                                     .range = Above(0),
                                     .default_value = 1e-5}),
      MemberField<&O::gamma>({.name = "gamma",
                              .help = "factor of a reward that comes one step later",
                              .range = Between(0, 1),
                              .default_value = 0.99}),
      MemberField<&O::max_gradient_norm>(
          {.name = "max_gradient_norm",
           .help = "a gradient whose norm is greater is scaled to this norm; 0: never",
           .range = AtLeast(0),
           .default_value = max_gradient_norm}),
      MemberField<&O::reward_scale>({.name = "reward_scale",
                                     .help = "multiplies the rewards that the learner sees",
                                     .range = Above(0),
                                     .default_value = 1})};
}

std::vector<ConfigField<AlgorithmOptions>> ActorCriticLossFields() {
  using O = AlgorithmOptions;
  return {MemberField<&O::entropy>({.name = "entropy",
                                    .help = "weight of the policy's entropy, which is rewarded",
                                    .range = AtLeast(0),
                                    .default_value = 0.01}),
          MemberField<&O::value_coefficient>({.name = "value_coefficient",
                                              .help = "weight of half the value's squared error",
                                              .range = AtLeast(0),
                                              .default_value = 0.5})};
}

std::unique_ptr<Policy> MakeActorCritic(const EnvironmentSpec& environment, const PolicyOptions& options,
                                        uint64_t seed) {
  return std::make_unique<ActorCritic>(environment, options, seed);
}

double LearningRateAt(const LearnerOptions& options, uint64_t env_steps) {
  const double part = std::min(
      1.0, static_cast<double>(env_steps) / static_cast<double>(std::max<uint64_t>(1, options.env_steps)));
  return options.algorithm.lr + part * (options.algorithm.lr_end - options.algorithm.lr);
}

absl::Status GradientNotFinite(const LearnerOptions& options, uint64_t update) {
  return absl::InternalError(absl::StrCat(
      "the gradient of update ", update, " of ", options.algorithm.kind,
      " is not finite; the parameters have diverged: try a lower algorithm.lr (", options.algorithm.lr,
      ") or a lower algorithm.reward_scale (", options.algorithm.reward_scale, ")"));
}

namespace {

// Checks the options and returns the algorithm's description.
absl::StatusOr<const AlgorithmKind*> CheckedKind(const LearnerOptions& options, EnvironmentSpec* spec) {
  TANDEM_ASSIGN_OR_RETURN(const AlgorithmKind* const kind, Algorithms().Get(options.algorithm.kind));
  TANDEM_RETURN_IF_ERROR(Algorithms().Validate(*kind, options.algorithm));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                          MakeEnvironment(options.environment));
  *spec = environment->spec();
  TANDEM_RETURN_IF_ERROR(
      Annotate(kind->build.supports(*spec), absl::StrCat("environment '", options.environment.kind, "'")));
  if (options.environments == 0) return absl::InvalidArgumentError("actors.envs is 0; it must be at least 1");
  if (options.actors == 0) return absl::InvalidArgumentError("actors.count is 0; it must be at least 1");
  if (!kind->build.has_actors && (options.actors > 1 || options.lockstep)) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.lockstep ? "actors.lockstep is true" : "actors.count is ",
                     options.lockstep ? "" : absl::StrCat(options.actors), ", but ", kind->name,
                     " has no actors of its own: it acts in actors.envs "
                     "copies itself; impala has actors"));
  }
  for (const int width : options.policy.hidden) {
    if (width < 1) return absl::InvalidArgumentError("policy.hidden has a layer without units");
  }
  return kind;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Learner>> MakeLearner(const LearnerOptions& options) {
  EnvironmentSpec spec;
  TANDEM_ASSIGN_OR_RETURN(const AlgorithmKind* const kind, CheckedKind(options, &spec));
  return kind->build.learner(options);
}

absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const LearnerOptions& options) {
  EnvironmentSpec spec;
  TANDEM_ASSIGN_OR_RETURN(const AlgorithmKind* const kind, CheckedKind(options, &spec));
  return kind->build.policy(spec, options.policy, options.seeds.policy);
}

}  // namespace tandem::rl
