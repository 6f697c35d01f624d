// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/learner/dqn_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/numeric/tensor.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/nn/gradient_clip.h"
#include "worker/rl/learner/registry.h"

namespace tandem::rl {
namespace {

// A priority of exactly 0 would never be drawn again.
constexpr double kLeastPriority = 1e-6;

}  // namespace

std::vector<replay::Column> TransitionColumns(const EnvironmentSpec& environment) {
  const auto width = static_cast<int64_t>(environment.observation_size);
  return {{"observation", DType::kF32, {width}},
          {"action", DType::kF32, {}},
          {"reward", DType::kF32, {}},
          {"discount", DType::kF32, {}},
          {"next_observation", DType::kF32, {width}}};
}

replay::TableOptions TransitionTableOptions(const LearnerOptions& options, int shards) {
  const AlgorithmOptions& o = options.algorithm;
  const auto size =
      std::max<uint64_t>(1, static_cast<uint64_t>(o.replay_size) / static_cast<uint64_t>(shards));
  replay::TableOptions table =
      o.priority_exponent > 0
          ? replay::TableOptions::Prioritized(kTransitionTable, size, 1, o.priority_exponent)
          : replay::TableOptions::Uniform(kTransitionTable, size, 1);
  table.seed = Mix64(options.seeds.policy, HashBytes("dqn samples"));
  return table;
}

double EpsilonAt(const LearnerOptions& options, uint64_t env_steps) {
  const AlgorithmOptions& o = options.algorithm;
  const double span = std::max(1.0, o.epsilon_fraction * static_cast<double>(options.env_steps));
  const double part = std::min(1.0, static_cast<double>(env_steps) / span);
  return o.epsilon_start + part * (o.epsilon_end - o.epsilon_start);
}

double ActorEpsilonAt(const LearnerOptions& options, uint64_t env_steps, size_t index, size_t actors) {
  const double place = actors > 1 ? static_cast<double>(index) / static_cast<double>(actors - 1) : 0;
  return std::pow(EpsilonAt(options, env_steps), 1 + options.algorithm.epsilon_spread * place);
}

DqnUpdate::DqnUpdate(const LearnerOptions& options, const EnvironmentSpec& environment)
    : options_(options),
      policy_(environment, options.policy, options.seeds.policy),
      target_(environment, options.policy, options.seeds.policy),
      observation_size_(environment.observation_size) {}

absl::StatusOr<std::unique_ptr<DqnUpdate>> DqnUpdate::Create(const LearnerOptions& options,
                                                             const EnvironmentSpec& environment) {
  std::unique_ptr<DqnUpdate> update(new DqnUpdate(options, environment));
  TANDEM_ASSIGN_OR_RETURN(update->optimizer_,
                          worker::DenseOptimizer::Create(
                              {.kind = "adam", .epsilon = static_cast<float>(options.algorithm.adam_epsilon)},
                              update->policy_.parameters().blocks()));
  update->CopyToTarget();
  return update;
}

void DqnUpdate::CopyToTarget() {
  const absl::Span<float> from = policy_.parameters().values();
  std::copy(from.begin(), from.end(), target_.parameters().values().begin());
}

absl::Status DqnUpdate::ComputeGradients(const replay::Batch& sample, uint64_t env_steps) {
  const AlgorithmOptions& o = options_.algorithm;
  const size_t batch = sample.size();
  for (const replay::Column& wanted : TransitionColumns(policy_.environment())) {
    const replay::BatchColumn* const found = sample.Find(wanted.name);
    if (found == nullptr || found->column != wanted || found->steps != 1) {
      return absl::InternalError(absl::StrCat("table '", kTransitionTable, "' gave items without a column ",
                                              wanted.ToString(),
                                              " of one step; actors and learners must run the same job"));
    }
  }
  const auto column = [&](const char* name) { return sample.Find(name)->values<float>(); };
  const absl::Span<const float> actions = column("action"), rewards = column("reward"),
                                discounts = column("discount");
  const double progress =
      std::min(1.0, static_cast<double>(env_steps) / static_cast<double>(options_.env_steps));
  const double beta = o.importance_exponent + progress * (1 - o.importance_exponent);
  std::vector<double> weights(batch, 1.0);
  if (o.priority_exponent > 0) {
    weights = replay::ImportanceWeights(sample.probabilities, sample.table_items, beta);
  }
  const size_t choices = policy_.choices();
  for (const float action : actions) {
    if (!(action >= 0 && action < static_cast<float>(choices))) {
      return absl::InternalError(absl::StrCat("table '", kTransitionTable, "' gave the action ", action,
                                              "; the environment has ", choices, " choices"));
    }
  }
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
  error_sum_ = 0;
  double q_sum = 0;
  for (size_t k = 0; k < batch; ++k) {
    const size_t at = k * choices + static_cast<size_t>(actions[k]);
    const double wanted = static_cast<double>(rewards[k]) +
                          static_cast<double>(discounts[k]) * next_values[k * choices + next_choices_[k]];
    const double error = values[at] - wanted;
    // Huber's loss: the gradient of an error is limited to 1.
    d_values_[at] =
        static_cast<float>(weights[k] * std::clamp(error, -1.0, 1.0) / static_cast<double>(batch));
    priorities_[k] = std::abs(error) + kLeastPriority;
    error_sum_ += std::abs(error);
    q_sum += values[at];
  }
  policy_.Backward(observations_.data(), batch, d_values_.data());
  mean_error_ = error_sum_ / static_cast<double>(batch);
  mean_q_ = q_sum / static_cast<double>(batch);
  return absl::OkStatus();
}

absl::Status DqnUpdate::Apply(uint64_t env_steps) {
  gradient_norm_ =
      worker::ClipGlobalNorm(options_.algorithm.max_gradient_norm, policy_.parameters().gradients());
  ++updates_;
  if (!std::isfinite(gradient_norm_) || !std::isfinite(error_sum_))
    return GradientNotFinite(options_, updates_);
  learning_rate_ = LearningRateAt(options_, env_steps);
  optimizer_->Step(static_cast<float>(learning_rate_), policy_.parameters().gradients(),
                   policy_.parameters().values());
  return absl::OkStatus();
}

LearnerState DqnUpdate::state() const {
  // Parameters have no const accessor.
  const absl::Span<const float> target = const_cast<QNetwork&>(target_).parameters().values();
  return {.updates = updates_, .optimizer = optimizer_->state(), .target = {target.begin(), target.end()}};
}

absl::Status DqnUpdate::Restore(const LearnerState& state) {
  const absl::Span<float> target = target_.parameters().values();
  if (state.target.size() != target.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the target network has ", state.target.size(),
                                                   " parameters, and this job's has ", target.size()));
  }
  TANDEM_RETURN_IF_ERROR(optimizer_->Restore(state.optimizer));
  std::copy(state.target.begin(), state.target.end(), target.begin());
  updates_ = state.updates;
  return absl::OkStatus();
}

Figures DqnUpdate::figures(uint64_t env_steps) const {
  return {{"loss/td_error", mean_error_},
          {"policy/mean_q", mean_q_},
          {"policy/epsilon", EpsilonAt(options_, env_steps)},
          {"gradient/norm", gradient_norm_},
          {"train/learning_rate", learning_rate_}};
}

}  // namespace tandem::rl
