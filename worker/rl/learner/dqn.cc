// SPDX-License-Identifier: Apache-2.0
// Deep Q-networks (Mnih et al., Nature 2015) with double targets (van Hasselt et al., AAAI 2016), returns
// over several steps, and prioritized replay (Schaul et al., ICLR 2016), all optional.

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/numeric/tensor.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/local_replay.h"
#include "replay/client/writer.h"
#include "replay/table/batch.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/gradient_clip.h"
#include "worker/rl/kernels/n_step.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/q_network.h"

namespace tandem::rl {
namespace {

constexpr char kTable[] = "transitions";
// A priority of exactly 0 would never be drawn again.
constexpr double kLeastPriority = 1e-6;

class Dqn : public Learner {
 public:
  Dqn(const LearnerOptions& options, std::unique_ptr<VectorEnvironment> environments)
      : options_(options),
        environments_(std::move(environments)),
        policy_(environments_->spec(), options.policy, options.seeds.policy),
        target_(environments_->spec(), options.policy, options.seeds.policy),
        observation_size_(environments_->spec().observation_size),
        exploring_(options.seeds.policy, HashBytes("dqn exploration")) {
    adders_.assign(environments_->count(),
                   NStepAdder(static_cast<size_t>(options.algorithm.n_step), options.algorithm.gamma));
    actions_.resize(environments_->count());
    normalized_.resize(environments_->count() * observation_size_);
  }

  absl::Status Init() {
    const AlgorithmOptions& o = options_.algorithm;
    TANDEM_ASSIGN_OR_RETURN(optimizer_, worker::DenseOptimizer::Create(
                                            {.kind = "adam", .epsilon = static_cast<float>(o.adam_epsilon)},
                                            policy_.parameters().blocks()));
    const auto size = static_cast<uint64_t>(o.replay_size);
    replay::TableOptions table = o.priority_exponent > 0
                                     ? replay::TableOptions::Prioritized(kTable, size, 1, o.priority_exponent)
                                     : replay::TableOptions::Uniform(kTable, size, 1);
    table.seed = Mix64(options_.seeds.policy, HashBytes("dqn samples"));
    TANDEM_RETURN_IF_ERROR(replay_.CreateTable(table));
    const auto width = static_cast<int64_t>(observation_size_);
    TANDEM_ASSIGN_OR_RETURN(writer_, replay::Writer::Create(&replay_,
                                                            {{"observation", DType::kF32, {width}},
                                                             {"action", DType::kF32, {}},
                                                             {"reward", DType::kF32, {}},
                                                             {"discount", DType::kF32, {}},
                                                             {"next_observation", DType::kF32, {width}}},
                                                            {.name = "dqn", .chunk_steps = kChunkSteps}));
    CopyToTarget();
    policy_.CountObservations(environments_->observations());
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

  Policy& policy() override { return policy_; }
  LearnerState state() const override {
    // Parameters have no const accessor.
    const absl::Span<const float> target = const_cast<QNetwork&>(target_).parameters().values();
    return {.env_steps = env_steps_,
            .updates = updates_,
            .optimizer = optimizer_->state(),
            .target = {target.begin(), target.end()}};
  }
  absl::Status Restore(const LearnerState& state) override {
    const absl::Span<float> target = target_.parameters().values();
    if (state.target.size() != target.size()) {
      return absl::InvalidArgumentError(absl::StrCat("the target network has ", state.target.size(),
                                                     " parameters, and this job's has ", target.size()));
    }
    TANDEM_RETURN_IF_ERROR(optimizer_->Restore(state.optimizer));
    std::copy(state.target.begin(), state.target.end(), target.begin());
    env_steps_ = learned_steps_ = target_steps_ = state.env_steps;
    updates_ = state.updates;
    // Neither episodes nor actions are repeated.
    TANDEM_ASSIGN_OR_RETURN(environments_,
                            VectorEnvironment::Create(options_.environment, options_.environments,
                                                      Mix64(options_.seeds.environment, env_steps_)));
    exploring_ = CounterRandom(options_.seeds.policy, Mix64(HashBytes("dqn exploration"), env_steps_));
    return absl::OkStatus();
  }
  Figures figures() const override {
    return {{"loss/td_error", mean_error_},
            {"policy/mean_q", mean_q_},
            {"policy/epsilon", Epsilon()},
            {"gradient/norm", gradient_norm_},
            {"train/learning_rate", learning_rate_}};
  }

 private:
  static constexpr uint32_t kChunkSteps = 16;
  static constexpr size_t kMostUpdates = 256;  // of one Advance

  double Epsilon() const {
    const AlgorithmOptions& o = options_.algorithm;
    const double span = std::max(1.0, o.epsilon_fraction * static_cast<double>(options_.env_steps));
    const double part = std::min(1.0, static_cast<double>(env_steps_) / span);
    return o.epsilon_start + part * (o.epsilon_end - o.epsilon_start);
  }

  // Does one step in each copy and stores the transitions that it completes.
  absl::Status Act() {
    const size_t count = environments_->count();
    previous_.assign(environments_->observations().begin(), environments_->observations().end());
    policy_.Normalize(previous_, absl::MakeSpan(normalized_));
    const absl::Span<const float> values = policy_.Forward(normalized_.data(), count);
    const double epsilon = Epsilon();
    for (size_t i = 0; i < count; ++i) {
      const bool explore = exploring_.UniformDouble() < epsilon;
      const uint64_t random_choice = exploring_.Below(policy_.choices());
      const absl::Span<const float> row = values.subspan(i * policy_.choices(), policy_.choices());
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
    policy_.CountObservations(environments_->observations());
    return stored;
  }

  absl::Status Store(const NStepTransition& transition) {
    TANDEM_RETURN_IF_ERROR(writer_->Append(
        {transition.observation, transition.action, absl::MakeConstSpan(&transition.reward, 1),
         absl::MakeConstSpan(&transition.discount, 1), transition.next_observation}));
    // Without a priority the item gets the greatest one so far, so that it is soon drawn once.
    TANDEM_RETURN_IF_ERROR(writer_->CreateItem(kTable, std::nullopt, writer_->Last(1)));
    ++stored_;
    return absl::OkStatus();
  }

  absl::Status Update() {
    const AlgorithmOptions& o = options_.algorithm;
    const auto batch = static_cast<size_t>(o.batch);
    TANDEM_ASSIGN_OR_RETURN(const replay::Batch sample,
                            replay_.Sample(kTable, {.batch = static_cast<uint32_t>(batch)}));
    const auto column = [&](const char* name) { return sample.Find(name)->values<float>(); };
    const absl::Span<const float> actions = column("action"), rewards = column("reward"),
                                  discounts = column("discount");
    const double progress =
        std::min(1.0, static_cast<double>(env_steps_) / static_cast<double>(options_.env_steps));
    const double beta = o.importance_exponent + progress * (1 - o.importance_exponent);
    std::vector<double> weights(batch, 1.0);
    if (o.priority_exponent > 0) {
      weights = replay::ImportanceWeights(sample.probabilities, sample.table_items, beta);
    }
    const size_t choices = policy_.choices();
    observations_.resize(batch * observation_size_);
    next_observations_.resize(batch * observation_size_);
    policy_.Normalize(column("observation"), absl::MakeSpan(observations_));
    policy_.Normalize(column("next_observation"), absl::MakeSpan(next_observations_));

    const absl::Span<const float> next_values = target_.Forward(next_observations_.data(), batch);
    next_choices_.resize(batch);
    {
      // Double: the online network chooses the action, the target network says what it is good for.
      const absl::Span<const float> chooser =
          o.target == "double" ? policy_.Forward(next_observations_.data(), batch) : next_values;
      for (size_t k = 0; k < batch; ++k) {
        const absl::Span<const float> row = chooser.subspan(k * choices, choices);
        next_choices_[k] = static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
      }
    }
    const absl::Span<const float> values = policy_.Forward(observations_.data(), batch);
    d_values_.assign(batch * choices, 0.0f);
    priorities_.resize(batch);
    double error_sum = 0, q_sum = 0;
    for (size_t k = 0; k < batch; ++k) {
      const size_t at = k * choices + static_cast<size_t>(actions[k]);
      const double wanted = static_cast<double>(rewards[k]) +
                            static_cast<double>(discounts[k]) * next_values[k * choices + next_choices_[k]];
      const double error = values[at] - wanted;
      // Huber's loss: the gradient of an error is limited to 1.
      d_values_[at] =
          static_cast<float>(weights[k] * std::clamp(error, -1.0, 1.0) / static_cast<double>(batch));
      priorities_[k] = std::abs(error) + kLeastPriority;
      error_sum += std::abs(error);
      q_sum += values[at];
    }
    policy_.Backward(observations_.data(), batch, d_values_.data());
    gradient_norm_ = worker::ClipGlobalNorm(o.max_gradient_norm, policy_.parameters().gradients());
    ++updates_;
    if (!std::isfinite(gradient_norm_) || !std::isfinite(error_sum))
      return GradientNotFinite(options_, updates_);
    learning_rate_ = LearningRateAt(options_, env_steps_);
    optimizer_->Step(static_cast<float>(learning_rate_), policy_.parameters().gradients(),
                     policy_.parameters().values());
    mean_error_ = error_sum / static_cast<double>(batch);
    mean_q_ = q_sum / static_cast<double>(batch);
    if (o.priority_exponent > 0) {
      TANDEM_RETURN_IF_ERROR(replay_.UpdatePriorities(kTable, sample.keys, priorities_));
    }
    if (learned_steps_ >= target_steps_ + static_cast<uint64_t>(o.target_every)) {
      CopyToTarget();
      target_steps_ = learned_steps_;
    }
    return absl::OkStatus();
  }

  void CopyToTarget() {
    const absl::Span<float> from = policy_.parameters().values();
    std::copy(from.begin(), from.end(), target_.parameters().values().begin());
  }

  const LearnerOptions options_;
  std::unique_ptr<VectorEnvironment> environments_;
  QNetwork policy_, target_;
  const size_t observation_size_;
  CounterRandom exploring_;
  std::unique_ptr<worker::DenseOptimizer> optimizer_;
  replay::LocalReplay replay_;
  std::unique_ptr<replay::Writer> writer_;
  std::vector<NStepAdder> adders_;  // of each copy
  uint64_t stored_ = 0;             // transitions
  uint64_t learned_steps_ = 0;      // environment steps for which the updates have been done
  uint64_t target_steps_ = 0;       // those at the last copy to the target network
  std::vector<float> previous_, normalized_, actions_;
  std::vector<float> observations_, next_observations_, d_values_;
  std::vector<size_t> next_choices_;
  std::vector<double> priorities_;
  double mean_error_ = 0, mean_q_ = 0, gradient_norm_ = 0, learning_rate_ = 0;
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
                    }}};
}

}  // namespace tandem::rl
