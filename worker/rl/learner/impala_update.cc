// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/learner/impala_update.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "worker/nn/gradient_clip.h"
#include "worker/rl/kernels/vtrace.h"
#include "worker/rl/learner/registry.h"

namespace tandem::rl {
namespace {

// Beyond this a ratio of probabilities is clipped in any case; exp() of more would overflow.
constexpr double kGreatestLogRatio = 20;

// The most unrolls of a paced table, unless one batch has more.
constexpr uint64_t kMostUnrolls = uint64_t{1} << 20;
// An actor that has died, or hangs, holds the learner up for so long. Its next life ends the tickets at once.
constexpr absl::Duration kTicketLease = absl::Seconds(10);
constexpr absl::Duration kLongestUnroll = absl::Hours(24);

replay::StalenessOptions PaceOf(const LearnerOptions& options, int learners) {
  // A job that is being checked may have a batch of 0.
  const uint64_t batch =
      std::max<uint64_t>(1, static_cast<uint64_t>(options.algorithm.batch) * static_cast<uint64_t>(learners));
  const uint64_t lag = std::min(static_cast<uint64_t>(options.algorithm.max_lag),
                                std::max<uint64_t>(1, kMostUnrolls / batch) - 1);
  return {.kind = replay::StalenessKind::kPace,
          .max_lag = static_cast<uint32_t>(lag),
          .batch = static_cast<uint32_t>(batch),
          .lease = kTicketLease,
          .max_rollout = kLongestUnroll};
}

}  // namespace

bool IsPaced(const LearnerOptions& options) {
  return options.algorithm.staleness == "pace" && !options.lockstep;
}

replay::TableOptions UnrollTableOptions(const LearnerOptions& options, const EnvironmentSpec& environment,
                                        int learners) {
  if (!IsPaced(options)) return UnrollQueue(environment, static_cast<uint64_t>(options.algorithm.queue));
  const replay::StalenessOptions pace = PaceOf(options, learners);
  replay::TableOptions table = UnrollQueue(environment, pace.window());
  table.staleness = pace;
  return table;
}

UnrollActorOptions ActorOptions(const LearnerOptions& options, size_t index) {
  return {.environment = options.environment,
          .copies = options.environments,
          .policy = options.policy,
          .unroll = options.algorithm.unroll,
          .environment_seed = options.seeds.environment,
          .policy_seed = options.seeds.policy,
          .index = index,
          .tickets = !IsPaced(options) ? 0
                                       : static_cast<uint32_t>(std::min<uint64_t>(
                                             options.environments, PaceOf(options, 1).window()))};
}

ImpalaUpdate::ImpalaUpdate(const LearnerOptions& options, const EnvironmentSpec& environment)
    : options_(options),
      policy_(environment, options.policy, options.seeds.policy),
      observation_size_(environment.observation_size),
      action_size_(policy_.distribution().action_size()) {}

absl::StatusOr<std::unique_ptr<ImpalaUpdate>> ImpalaUpdate::Create(const LearnerOptions& options,
                                                                   const EnvironmentSpec& environment) {
  std::unique_ptr<ImpalaUpdate> update(new ImpalaUpdate(options, environment));
  TANDEM_ASSIGN_OR_RETURN(update->optimizer_,
                          worker::DenseOptimizer::Create(
                              {.kind = "adam", .epsilon = static_cast<float>(options.algorithm.adam_epsilon)},
                              update->policy_.parameters().blocks()));
  return update;
}

absl::Status ImpalaUpdate::Take(const replay::Batch& batch, uint64_t version) {
  const AlgorithmOptions& o = options_.algorithm;
  unrolls_ = batch.size();
  steps_ = static_cast<size_t>(o.unroll);
  const std::vector<replay::Column> wanted = UnrollColumns(policy_.environment());
  for (const replay::Column& column : wanted) {
    const replay::BatchColumn* const found = batch.Find(column.name);
    if (found == nullptr || found->column != column || found->steps != steps_) {
      return absl::InternalError(absl::StrCat("table '", kUnrollTable, "' gave items without a column ",
                                              column.ToString(), " of ", steps_,
                                              " steps; actors and learners must run the same job"));
    }
  }
  const auto floats = [&](const char* name) { return batch.Find(name)->values<float>(); };
  const auto bytes = [&](const char* name) { return batch.Find(name)->values<uint8_t>(); };
  const size_t size = steps_ * unrolls_;
  // The batch has unroll after unroll, the estimators want time after time.
  const auto by_time = [&](absl::Span<const float> from, size_t width, std::vector<float>* to) {
    to->resize(size * width);
    for (size_t u = 0; u < unrolls_; ++u) {
      for (size_t t = 0; t < steps_; ++t) {
        std::copy_n(from.begin() + static_cast<ptrdiff_t>((u * steps_ + t) * width), width,
                    to->begin() + static_cast<ptrdiff_t>((t * unrolls_ + u) * width));
      }
    }
  };
  by_time(floats("observation"), observation_size_, &observations_);
  by_time(floats("next_observation"), observation_size_, &next_observations_);
  by_time(floats("action"), action_size_, &actions_);
  by_time(floats("log_probability"), 1, &log_probabilities_);
  by_time(floats("reward"), 1, &rewards_);
  const absl::Span<const uint8_t> terminated = bytes("terminated"), truncated = bytes("truncated");
  discounts_.resize(size);
  ends_.resize(size);
  bootstrap_rows_.clear();
  bootstrap_observations_.clear();
  for (size_t t = 0; t < steps_; ++t) {
    for (size_t u = 0; u < unrolls_; ++u) {
      const size_t i = t * unrolls_ + u, from = u * steps_ + t;
      rewards_[i] *= static_cast<float>(o.reward_scale);
      discounts_[i] = terminated[from] != 0 ? 0.0f : static_cast<float>(o.gamma);
      ends_[i] = terminated[from] != 0 || truncated[from] != 0 ? 1 : 0;
      if (terminated[from] != 0 || (truncated[from] == 0 && t + 1 < steps_)) continue;
      bootstrap_rows_.push_back(i);
      const auto next = next_observations_.begin() + static_cast<ptrdiff_t>(i * observation_size_);
      bootstrap_observations_.insert(bootstrap_observations_.end(), next,
                                     next + static_cast<ptrdiff_t>(observation_size_));
    }
  }
  counts_.resize(unrolls_);
  used_ = 0;
  double sum = 0;
  for (size_t u = 0; u < unrolls_; ++u) {
    const uint64_t begun = static_cast<uint64_t>(std::max<int64_t>(0, batch.min_versions[u]));
    const uint64_t lag = version > begun ? version - begun : 0;
    ++lag_.unrolls;
    counts_[u] = lag <= static_cast<uint64_t>(o.max_lag) ? 1 : 0;
    if (counts_[u] == 0) {
      ++lag_.dropped;
      continue;
    }
    ++used_;
    sum += static_cast<double>(lag);
    lag_.greatest = std::max(lag_.greatest, lag);
  }
  lag_.sum += sum;
  batch_lag_ = used_ > 0 ? sum / static_cast<double>(used_) : 0;
  return absl::OkStatus();
}

// Computes ratios and the V-trace targets from the heads and values of the last Forward.
void ImpalaUpdate::Estimate() {
  const AlgorithmOptions& o = options_.algorithm;
  const size_t size = steps_ * unrolls_;
  values_.resize(size);
  next_values_.assign(size, 0.0f);
  ratios_.resize(size);
  errors_.resize(size);
  advantages_.resize(size);
  for (size_t i = 0; i < size; ++i) values_[i] = policy_.value(i);
  for (size_t i = 0; i + unrolls_ < size; ++i) {
    if (ends_[i] == 0) next_values_[i] = values_[i + unrolls_];
  }
  for (size_t k = 0; k < bootstrap_rows_.size(); ++k) next_values_[bootstrap_rows_[k]] = bootstrap_values_[k];
  mean_ratio_ = 0;
  for (size_t i = 0; i < size; ++i) {
    const absl::Span<const float> action =
        absl::MakeConstSpan(actions_).subspan(i * action_size_, action_size_);
    const double now =
        policy_.distribution().Evaluate(policy_.head(i), policy_.log_std(), action).log_probability;
    ratios_[i] = static_cast<float>(std::exp(std::min(kGreatestLogRatio, now - log_probabilities_[i])));
    mean_ratio_ += ratios_[i] / static_cast<double>(size);
  }
  VTrace({.steps = steps_,
          .streams = unrolls_,
          .rewards = rewards_,
          .discounts = discounts_,
          .values = values_,
          .next_values = next_values_,
          .ends = ends_},
         ratios_,
         {.lambda = o.lambda, .clip_rho = o.clip_rho, .clip_c = o.clip_c, .clip_advantage = o.clip_rho},
         absl::MakeSpan(errors_), absl::MakeSpan(advantages_));
}

absl::Status ImpalaUpdate::ComputeGradients(const replay::Batch& batch, uint64_t version) {
  const AlgorithmOptions& o = options_.algorithm;
  TANDEM_RETURN_IF_ERROR(Take(batch, version));
  if (used_ == 0) {
    std::fill(policy_.parameters().gradients().begin(), policy_.parameters().gradients().end(), 0.0f);
    return absl::OkStatus();
  }
  policy_.CountObservations(observations_);
  policy_.Normalize(observations_, absl::MakeSpan(observations_));
  policy_.Normalize(bootstrap_observations_, absl::MakeSpan(bootstrap_observations_));
  bootstrap_values_.resize(bootstrap_rows_.size());
  if (!bootstrap_rows_.empty()) {
    policy_.Values(bootstrap_observations_.data(), bootstrap_rows_.size(), absl::MakeSpan(bootstrap_values_));
  }
  const size_t size = steps_ * unrolls_;
  policy_.Forward(observations_.data(), size);
  Estimate();
  const double share = 1.0 / static_cast<double>(size);
  policy_loss_ = value_loss_ = entropy_ = 0;
  std::fill(policy_.d_log_std().begin(), policy_.d_log_std().end(), 0.0f);
  for (size_t i = 0; i < size; ++i) {
    if (counts_[i % unrolls_] == 0) {
      std::fill(policy_.d_head(i).begin(), policy_.d_head(i).end(), 0.0f);
      policy_.d_value(i) = 0;
      continue;
    }
    const absl::Span<const float> action =
        absl::MakeConstSpan(actions_).subspan(i * action_size_, action_size_);
    const ActionDistribution::Values now =
        policy_.distribution().Evaluate(policy_.head(i), policy_.log_std(), action);
    policy_loss_ -= share * advantages_[i] * now.log_probability;
    entropy_ += share * now.entropy;
    value_loss_ += share * 0.5 * errors_[i] * errors_[i];
    policy_.distribution().Backward(policy_.head(i), policy_.log_std(), action, -share * advantages_[i],
                                    -share * o.entropy, policy_.d_head(i), policy_.d_log_std());
    policy_.d_value(i) = static_cast<float>(-share * o.value_coefficient * errors_[i]);
  }
  policy_.Backward(observations_.data(), size);
  return absl::OkStatus();
}

absl::Status ImpalaUpdate::Apply(uint64_t env_steps) {
  ++updates_;
  gradient_norm_ =
      worker::ClipGlobalNorm(options_.algorithm.max_gradient_norm, policy_.parameters().gradients());
  if (!std::isfinite(gradient_norm_)) return GradientNotFinite(options_, updates_);
  learning_rate_ = LearningRateAt(options_, env_steps);
  optimizer_->Step(static_cast<float>(learning_rate_), policy_.parameters().gradients(),
                   policy_.parameters().values());
  return absl::OkStatus();
}

absl::Status ImpalaUpdate::Restore(const LearnerState& state) {
  TANDEM_RETURN_IF_ERROR(optimizer_->Restore(state.optimizer));
  updates_ = state.updates;
  return absl::OkStatus();
}

Figures ImpalaUpdate::figures() const {
  return {{"loss/policy", policy_loss_},
          {"loss/value", value_loss_},
          {"policy/entropy", entropy_},
          {"policy/mean_ratio", mean_ratio_},
          {"lag/mean", batch_lag_},
          {"lag/greatest", static_cast<double>(lag_.greatest)},
          {"lag/dropped", static_cast<double>(lag_.dropped)},
          {"gradient/norm", gradient_norm_},
          {"train/learning_rate", learning_rate_}};
}

}  // namespace tandem::rl
