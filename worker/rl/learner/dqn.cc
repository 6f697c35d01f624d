// SPDX-License-Identifier: Apache-2.0
// Deep Q-networks (Mnih et al., Nature 2015) with double targets (van Hasselt et al., AAAI 2016), returns
// over several steps, and prioritized replay (Schaul et al., ICLR 2016), all optional.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/local_replay.h"
#include "replay/client/writer.h"
#include "replay/table/batch.h"
#include "worker/rl/kernels/n_step.h"
#include "worker/rl/learner/dqn_update.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/q_network.h"

namespace tandem::rl {
namespace {

class Dqn : public Learner {
 public:
  Dqn(const LearnerOptions& options, std::unique_ptr<VectorEnvironment> environments)
      : options_(options),
        environments_(std::move(environments)),
        observation_size_(environments_->spec().observation_size),
        exploring_(options.seeds.policy, HashBytes("dqn exploration")) {
    adders_.assign(environments_->count(),
                   NStepAdder(static_cast<size_t>(options.algorithm.n_step), options.algorithm.gamma));
    actions_.resize(environments_->count());
    normalized_.resize(environments_->count() * observation_size_);
  }

  absl::Status Init() {
    TANDEM_ASSIGN_OR_RETURN(update_, DqnUpdate::Create(options_, environments_->spec()));
    TANDEM_RETURN_IF_ERROR(replay_.CreateTable(TransitionTableOptions(options_)));
    TANDEM_ASSIGN_OR_RETURN(writer_,
                            replay::Writer::Create(&replay_, TransitionColumns(environments_->spec()),
                                                   {.name = "dqn", .chunk_steps = kChunkSteps}));
    update_->policy().CountObservations(environments_->observations());
    return absl::OkStatus();
  }

  absl::Status Advance() override {
    const AlgorithmOptions& o = options_.algorithm;
    const auto every = static_cast<uint64_t>(o.update_every);
    size_t updates = 0;
    for (size_t step = 0;;) {
      if (learned_steps_ + every <= env_steps_) {
        if (updates++ == kMostUpdates) return absl::OkStatus();  // the next call goes on here
        TANDEM_RETURN_IF_ERROR(Update());
        learned_steps_ += every;
        continue;
      }
      if (step++ == 32) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(Act());
      if (stored_ < static_cast<uint64_t>(o.learning_starts)) learned_steps_ = env_steps_;
    }
  }

  Policy& policy() override { return update_->policy(); }
  LearnerState state() const override {
    LearnerState state = update_->state();
    state.env_steps = env_steps_;
    return state;
  }
  absl::Status Restore(const LearnerState& state) override {
    TANDEM_RETURN_IF_ERROR(update_->Restore(state));
    env_steps_ = learned_steps_ = target_steps_ = state.env_steps;
    updates_ = state.updates;
    // Neither episodes nor actions are repeated.
    TANDEM_ASSIGN_OR_RETURN(environments_,
                            VectorEnvironment::Create(options_.environment, options_.environments,
                                                      Mix64(options_.seeds.environment, env_steps_)));
    exploring_ = CounterRandom(options_.seeds.policy, Mix64(HashBytes("dqn exploration"), env_steps_));
    return absl::OkStatus();
  }
  Figures figures() const override { return update_->figures(env_steps_); }

 private:
  static constexpr uint32_t kChunkSteps = 16;
  static constexpr size_t kMostUpdates = 256;  // of one Advance

  // Does one step in each copy and stores the transitions that it completes.
  absl::Status Act() {
    const size_t count = environments_->count();
    QNetwork& policy = update_->policy();
    previous_.assign(environments_->observations().begin(), environments_->observations().end());
    policy.Normalize(previous_, absl::MakeSpan(normalized_));
    const absl::Span<const float> values = policy.Forward(normalized_.data(), count);
    const double epsilon = EpsilonAt(options_, env_steps_);
    for (size_t i = 0; i < count; ++i) {
      const bool explore = exploring_.UniformDouble() < epsilon;
      const uint64_t random_choice = exploring_.Below(policy.choices());
      const absl::Span<const float> row = values.subspan(i * policy.choices(), policy.choices());
      actions_[i] = explore ? static_cast<float>(random_choice)
                            : static_cast<float>(std::max_element(row.begin(), row.end()) - row.begin());
    }
    TANDEM_RETURN_IF_ERROR(environments_->Step(actions_));
    CountStep(*environments_);
    absl::Status stored;
    for (size_t i = 0; i < count; ++i) {
      adders_[i].Add(absl::MakeConstSpan(previous_).subspan(i * observation_size_, observation_size_),
                     absl::MakeConstSpan(actions_).subspan(i, 1),
                     environments_->rewards()[i] * options_.algorithm.reward_scale,
                     environments_->final_observations().subspan(i * observation_size_, observation_size_),
                     environments_->terminated()[i] != 0, environments_->truncated()[i] != 0,
                     [&](const NStepTransition& transition) {
                       if (stored.ok()) stored = Store(transition);
                     });
    }
    policy.CountObservations(environments_->observations());
    return stored;
  }

  absl::Status Store(const NStepTransition& transition) {
    TANDEM_RETURN_IF_ERROR(writer_->Append(
        {transition.observation, transition.action, absl::MakeConstSpan(&transition.reward, 1),
         absl::MakeConstSpan(&transition.discount, 1), transition.next_observation}));
    // Without a priority the item gets the greatest one so far, so that it is soon drawn once.
    TANDEM_RETURN_IF_ERROR(writer_->CreateItem(kTransitionTable, std::nullopt, writer_->Last(1)));
    ++stored_;
    return absl::OkStatus();
  }

  absl::Status Update() {
    const AlgorithmOptions& o = options_.algorithm;
    TANDEM_ASSIGN_OR_RETURN(const replay::Batch sample,
                            replay_.Sample(kTransitionTable, {.batch = static_cast<uint32_t>(o.batch)}));
    TANDEM_RETURN_IF_ERROR(update_->ComputeGradients(sample, env_steps_));
    const absl::Status applied = update_->Apply(env_steps_);
    updates_ = update_->updates();
    TANDEM_RETURN_IF_ERROR(applied);
    if (o.priority_exponent > 0) {
      TANDEM_RETURN_IF_ERROR(replay_.UpdatePriorities(kTransitionTable, sample.keys, update_->priorities()));
    }
    if (learned_steps_ >= target_steps_ + static_cast<uint64_t>(o.target_every)) {
      update_->CopyToTarget();
      target_steps_ = learned_steps_;
    }
    return absl::OkStatus();
  }

  const LearnerOptions options_;
  std::unique_ptr<VectorEnvironment> environments_;
  std::unique_ptr<DqnUpdate> update_;
  const size_t observation_size_;
  CounterRandom exploring_;
  replay::LocalReplay replay_;
  std::unique_ptr<replay::Writer> writer_;
  std::vector<NStepAdder> adders_;  // of each copy
  uint64_t stored_ = 0;             // transitions
  uint64_t learned_steps_ = 0;      // environment steps for which the updates have been done
  uint64_t target_steps_ = 0;       // those at the last copy to the target network
  std::vector<float> previous_, normalized_, actions_;
};

absl::StatusOr<std::unique_ptr<Learner>> MakeDqn(const LearnerOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<VectorEnvironment> environments,
      VectorEnvironment::Create(options.environment, options.environments, options.seeds.environment));
  auto learner = std::make_unique<Dqn>(options, std::move(environments));
  TANDEM_RETURN_IF_ERROR(learner->Init());
  return learner;
}

absl::Status NeedsChoices(const EnvironmentSpec& environment) {
  if (environment.actions.discrete()) return absl::OkStatus();
  return absl::InvalidArgumentError("its actions are real numbers, and dqn needs choices; use ppo");
}

// Contradictions between fields of the job.
std::optional<FieldConflict> CheckSizes(const AlgorithmOptions& o) {
  if (o.learning_starts > o.replay_size) {
    return FieldConflict{.field = "learning_starts",
                         .job_message = absl::StrCat("must be at most 'replay_size', ", o.replay_size),
                         .message = absl::StrCat("learning_starts is ", o.learning_starts,
                                                 "; it must be at most replay_size, ", o.replay_size)};
  }
  if (o.epsilon_end > o.epsilon_start) {
    return FieldConflict{.field = "epsilon_end",
                         .job_message = absl::StrCat("must be at most 'epsilon_start', ", o.epsilon_start),
                         .message = absl::StrCat("epsilon_end is ", o.epsilon_end,
                                                 "; it must be at most epsilon_start, ", o.epsilon_start)};
  }
  return std::nullopt;
}

}  // namespace

AlgorithmKind DqnKind() {
  using O = AlgorithmOptions;
  std::vector<ConfigField<O>> fields = CommonFields(1e-3, 10);
  const std::vector<ConfigField<O>> own = {
      MemberField<&O::n_step>({.name = "n_step",
                               .help = "rewards that are added up before the target network's value",
                               .range = Between(1, 1000),
                               .default_value = 3}),
      MemberField<&O::batch>({.name = "batch",
                              .help = "transitions of an update",
                              .range = Between(1, 1 << 16),
                              .default_value = 64}),
      MemberField<&O::replay_size>({.name = "replay_size",
                                    .help = "transitions that the replay table keeps, the newest ones",
                                    .range = Between(1, 1 << 30),
                                    .default_value = 50000}),
      MemberField<&O::learning_starts>({.name = "learning_starts",
                                        .help = "transitions before the first update; at most `replay_size`",
                                        .range = Between(32, 1 << 30),
                                        .default_value = 1000}),
      MemberField<&O::update_every>({.name = "update_every",
                                     .help = "steps of all environments between updates",
                                     .range = Between(1, 1 << 20),
                                     .default_value = 4}),
      MemberField<&O::target_every>({.name = "target_every",
                                     .help = "steps of all environments between copies to the target network",
                                     .range = Between(1, 1 << 30),
                                     .default_value = 2000}),
      MemberField<&O::epsilon_start>({.name = "epsilon_start",
                                      .help = "probability of a random action at the start",
                                      .range = Between(0, 1),
                                      .default_value = 1}),
      MemberField<&O::epsilon_end>({.name = "epsilon_end",
                                    .help = "probability of a random action after the decay; at most "
                                            "`epsilon_start`",
                                    .range = Between(0, 1),
                                    .default_value = 0.05}),
      MemberField<&O::epsilon_fraction>({.name = "epsilon_fraction",
                                         .help =
                                             "part of `stop.env_steps` over which that probability falls, "
                                             "linearly",
                                         .range = Between(0, 1),
                                         .default_value = 0.1}),
      MemberField<&O::epsilon_spread>(
          {.name = "epsilon_spread",
           .help =
               "of a job of several processes: actor i of n takes random actions with that probability to "
               "the power of 1 + `epsilon_spread` x i / (n - 1); 0: all actors explore alike",
           .range = Between(0, 100),
           .default_value = 1}),
      MemberField<&O::target>({.name = "target",
                               .help = "which network chooses the next action: the one that learns "
                                       "(`double`) or the target network (`plain`)",
                               .choices = {"double", "plain"}}),
      MemberField<&O::priority_exponent>({.name = "priority_exponent",
                                          .help = "transitions are drawn with probabilities proportional to "
                                                  "their last error to this power; 0: uniformly",
                                          .range = Between(0, 1),
                                          .default_value = 0.6}),
      MemberField<&O::importance_exponent>(
          {.name = "importance_exponent",
           .help = "exponent of importance weights at the start; it grows to 1",
           .range = Between(0, 1),
           .default_value = 0.4})};
  fields.insert(fields.end(), own.begin(), own.end());
  return {.name = "dqn",
          .summary =
              "deep Q-network with double targets, several steps and prioritized replay: off-policy, for "
              "choices",
          .reference = "Hessel et al., AAAI 2018",
          .fields = std::move(fields),
          .check = CheckSizes,
          .build = {.supports = NeedsChoices,
                    .learner = MakeDqn,
                    .policy = [](const EnvironmentSpec& environment, const PolicyOptions& options,
                                 uint64_t seed) -> std::unique_ptr<Policy> {
                      return std::make_unique<QNetwork>(environment, options, seed);
                    },
                    .has_roles = true}};
}

}  // namespace tandem::rl
