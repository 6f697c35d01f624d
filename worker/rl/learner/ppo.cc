// SPDX-License-Identifier: Apache-2.0
// Proximal policy optimization (Schulman et al., 2017), with the details of Huang et al., "The 37
// Implementation Details of PPO" (ICLR blog track, 2022): orthogonal weights with a small policy head, GAE,
// advantages normalized in each minibatch, gradients clipped by their norm, and a learning rate that is
// annealed. A time limit bootstraps with the value of the last observation.

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/gradient_clip.h"
#include "worker/rl/kernels/gae.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/actor_critic.h"

namespace tandem::rl {
namespace {

class Ppo : public Learner {
 public:
  Ppo(const LearnerOptions& options, std::unique_ptr<VectorEnvironment> environments)
      : options_(options),
        environments_(std::move(environments)),
        policy_(environments_->spec(), options.policy, options.seeds.policy),
        action_size_(policy_.distribution().action_size()),
        observation_size_(environments_->spec().observation_size),
        streams_(environments_->count()),
        size_(static_cast<size_t>(options.algorithm.unroll) * streams_),
        acting_(options.seeds.policy, HashBytes("ppo actions")) {
    observations_.resize(size_ * observation_size_);
    actions_.resize(size_ * action_size_);
    taken_.resize(streams_ * action_size_);
    for (std::vector<float>* const column :
         {&log_probabilities_, &values_, &rewards_, &discounts_, &next_values_, &advantages_}) {
      column->resize(size_);
    }
    ends_.resize(size_);
    order_.resize(size_);
    bootstrap_.resize(streams_);
    next_.resize(streams_ * observation_size_);
  }

  absl::Status Init() {
    TANDEM_ASSIGN_OR_RETURN(
        optimizer_, worker::DenseOptimizer::Create(
                        {.kind = "adam", .epsilon = static_cast<float>(options_.algorithm.adam_epsilon)},
                        policy_.parameters().blocks()));
    policy_.CountObservations(environments_->observations());
    return absl::OkStatus();
  }

  absl::Status Advance() override {
    const double lr = LearningRateAt(options_, env_steps_);
    TANDEM_RETURN_IF_ERROR(Collect());
    return Learn(lr);
  }

  Policy& policy() override { return policy_; }
  LearnerState state() const override {
    return {.env_steps = env_steps_, .updates = updates_, .optimizer = optimizer_->state()};
  }
  absl::Status Restore(const LearnerState& state) override {
    TANDEM_RETURN_IF_ERROR(optimizer_->Restore(state.optimizer));
    env_steps_ = state.env_steps;
    updates_ = state.updates;
    epochs_ = updates_ / static_cast<uint64_t>(options_.algorithm.minibatches);
    // Neither episodes nor actions are repeated.
    TANDEM_ASSIGN_OR_RETURN(environments_,
                            VectorEnvironment::Create(options_.environment, options_.environments,
                                                      Mix64(options_.seeds.environment, env_steps_)));
    acting_ = CounterRandom(options_.seeds.policy, Mix64(HashBytes("ppo actions"), env_steps_));
    return absl::OkStatus();
  }
  Figures figures() const override { return figures_; }

 private:
  // The losses and measures of an update, summed over its minibatches.
  struct Losses {
    double policy = 0, value = 0, entropy = 0, kl = 0, clipped = 0, gradient_norm = 0;
  };

  absl::Span<float> Part(std::vector<float>& values, size_t row, size_t rows, size_t width) {
    return absl::MakeSpan(values).subspan(row * width, rows * width);
  }

  // Acts for `unroll` steps in each copy.
  absl::Status Collect() {
    truncated_rows_.clear();
    truncated_observations_.clear();
    for (size_t begin = 0; begin < size_; begin += streams_) {
      const absl::Span<float> observations = Part(observations_, begin, streams_, observation_size_);
      policy_.Normalize(environments_->observations(), observations);
      const absl::Span<float> actions = Part(actions_, begin, streams_, action_size_);
      policy_.Act(observations.data(), streams_, acting_, actions,
                  Part(log_probabilities_, begin, streams_, 1), Part(values_, begin, streams_, 1));
      for (size_t s = 0; s < streams_; ++s) {
        policy_.distribution().ToEnvironment(actions.subspan(s * action_size_, action_size_),
                                             Part(taken_, s, 1, action_size_));
      }
      TANDEM_RETURN_IF_ERROR(environments_->Step(taken_));
      CountStep(*environments_);
      for (size_t s = 0; s < streams_; ++s) {
        const size_t i = begin + s;
        const bool terminated = environments_->terminated()[s] != 0,
                   truncated = environments_->truncated()[s] != 0;
        rewards_[i] = static_cast<float>(environments_->rewards()[s] * options_.algorithm.reward_scale);
        discounts_[i] = terminated ? 0.0f : static_cast<float>(options_.algorithm.gamma);
        ends_[i] = terminated || truncated ? 1 : 0;
        next_values_[i] = 0;
        if (!truncated || terminated) continue;
        const absl::Span<const float> last =
            environments_->final_observations().subspan(s * observation_size_, observation_size_);
        truncated_rows_.push_back(i);
        truncated_observations_.insert(truncated_observations_.end(), last.begin(), last.end());
      }
      policy_.CountObservations(environments_->observations());
    }
    return absl::OkStatus();
  }

  // Computes the values of what follows each transition, then advantages.
  void Estimate() {
    policy_.Normalize(environments_->observations(), absl::MakeSpan(next_));
    policy_.Values(next_.data(), streams_, absl::MakeSpan(bootstrap_));
    for (size_t i = 0; i < size_; ++i) {
      if (ends_[i] != 0) continue;
      next_values_[i] = i + streams_ < size_ ? values_[i + streams_] : bootstrap_[i % streams_];
    }
    if (!truncated_rows_.empty()) {
      policy_.Normalize(truncated_observations_, absl::MakeSpan(truncated_observations_));
      truncated_values_.resize(truncated_rows_.size());
      policy_.Values(truncated_observations_.data(), truncated_rows_.size(),
                     absl::MakeSpan(truncated_values_));
      for (size_t k = 0; k < truncated_rows_.size(); ++k)
        next_values_[truncated_rows_[k]] = truncated_values_[k];
    }
    GeneralizedAdvantages({.steps = size_ / streams_,
                           .streams = streams_,
                           .rewards = rewards_,
                           .discounts = discounts_,
                           .values = values_,
                           .next_values = next_values_,
                           .ends = ends_},
                          options_.algorithm.lambda, absl::MakeSpan(advantages_));
  }

  absl::Status Learn(double lr) {
    Estimate();
    Losses losses;
    const auto minibatches = static_cast<size_t>(options_.algorithm.minibatches);
    std::iota(order_.begin(), order_.end(), size_t{0});
    for (int epoch = 0; epoch < options_.algorithm.epochs; ++epoch) {
      CounterRandom random(Mix64(options_.seeds.policy, HashBytes("ppo order")), ++epochs_);
      for (size_t i = size_; i > 1; --i) std::swap(order_[i - 1], order_[random.Below(i)]);
      for (size_t m = 0; m < minibatches; ++m) {
        const size_t begin = size_ * m / minibatches, end = size_ * (m + 1) / minibatches;
        TANDEM_RETURN_IF_ERROR(Update(absl::MakeConstSpan(order_).subspan(begin, end - begin), lr, &losses));
      }
    }
    const double count = static_cast<double>(minibatches) * options_.algorithm.epochs;
    figures_ = {{"loss/policy", losses.policy / count},
                {"loss/value", losses.value / count},
                {"policy/entropy", losses.entropy / count},
                {"policy/kl", losses.kl / count},
                {"policy/clipped", losses.clipped / count},
                {"gradient/norm", losses.gradient_norm / count},
                {"train/learning_rate", lr}};
    return absl::OkStatus();
  }

  absl::Status Update(absl::Span<const size_t> rows, double lr, Losses* losses) {
    const AlgorithmOptions& o = options_.algorithm;
    const size_t batch = rows.size();
    minibatch_.resize(batch * observation_size_);
    for (size_t k = 0; k < batch; ++k) {
      std::copy_n(observations_.begin() + static_cast<ptrdiff_t>(rows[k] * observation_size_),
                  observation_size_, minibatch_.begin() + static_cast<ptrdiff_t>(k * observation_size_));
    }
    double mean = 0, squares = 0;
    for (const size_t row : rows) mean += advantages_[row];
    mean /= static_cast<double>(batch);
    for (const size_t row : rows) squares += (advantages_[row] - mean) * (advantages_[row] - mean);
    const double deviation = batch > 1 ? std::sqrt(squares / static_cast<double>(batch - 1)) : 0.0;

    policy_.Forward(minibatch_.data(), batch);
    const ActionDistribution& distribution = policy_.distribution();
    const double share = 1.0 / static_cast<double>(batch);
    std::fill(policy_.d_log_std().begin(), policy_.d_log_std().end(), 0.0f);
    for (size_t k = 0; k < batch; ++k) {
      const size_t row = rows[k];
      const absl::Span<const float> action =
          absl::MakeConstSpan(actions_).subspan(row * action_size_, action_size_);
      const ActionDistribution::Values now =
          distribution.Evaluate(policy_.head(k), policy_.log_std(), action);
      const double log_ratio = now.log_probability - log_probabilities_[row], ratio = std::exp(log_ratio);
      // One advantage has no deviation, so it stays as it is.
      const double advantage = batch > 1 ? (advantages_[row] - mean) / (deviation + 1e-8) : advantages_[row];
      const double plain = ratio * advantage;
      const double limited = std::clamp(ratio, 1 - o.clip, 1 + o.clip) * advantage;
      losses->policy -= share * std::min(plain, limited);
      losses->entropy += share * now.entropy;
      losses->kl += share * ((ratio - 1) - log_ratio);
      losses->clipped += share * (std::abs(ratio - 1) > o.clip ? 1 : 0);
      distribution.Backward(policy_.head(k), policy_.log_std(), action,
                            plain <= limited ? -share * plain : 0.0, -share * o.entropy, policy_.d_head(k),
                            policy_.d_log_std());
      const double error = policy_.value(k) - (advantages_[row] + values_[row]);
      losses->value += share * 0.5 * error * error;
      policy_.d_value(k) = static_cast<float>(share * o.value_coefficient * error);
    }
    policy_.Backward(minibatch_.data(), batch);
    const double norm = worker::ClipGlobalNorm(o.max_gradient_norm, policy_.parameters().gradients());
    losses->gradient_norm += norm;
    ++updates_;
    if (!std::isfinite(norm)) return GradientNotFinite(options_, updates_);
    optimizer_->Step(static_cast<float>(lr), policy_.parameters().gradients(), policy_.parameters().values());
    return absl::OkStatus();
  }

  const LearnerOptions options_;
  std::unique_ptr<VectorEnvironment> environments_;
  ActorCritic policy_;
  const size_t action_size_, observation_size_, streams_;
  const size_t size_;  // transitions of an update
  std::unique_ptr<worker::DenseOptimizer> optimizer_;
  CounterRandom acting_;
  uint64_t epochs_ = 0;  // over all updates
  // The transitions, time by time. Observations are normalized as they were when the policy acted.
  std::vector<float> observations_, actions_, log_probabilities_, values_, rewards_, discounts_, next_values_,
      advantages_;
  std::vector<uint8_t> ends_;
  std::vector<float> taken_;  // the actions of a step, as the environments take them
  std::vector<float> next_, bootstrap_;
  // The transitions at which a time limit has ended an episode, and its last observations.
  std::vector<size_t> truncated_rows_;
  std::vector<float> truncated_observations_, truncated_values_;
  std::vector<size_t> order_;
  std::vector<float> minibatch_;
  Figures figures_;
};

absl::StatusOr<std::unique_ptr<Learner>> MakePpo(const LearnerOptions& options) {
  const size_t transitions = static_cast<size_t>(options.algorithm.unroll) * options.environments;
  if (transitions < static_cast<size_t>(options.algorithm.minibatches)) {
    return absl::InvalidArgumentError(absl::StrCat("algorithm.minibatches is ", options.algorithm.minibatches,
                                                   ", but an update has only ", transitions,
                                                   " transitions (algorithm.unroll times actors.envs)"));
  }
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<VectorEnvironment> environments,
      VectorEnvironment::Create(options.environment, options.environments, options.seeds.environment));
  auto learner = std::make_unique<Ppo>(options, std::move(environments));
  TANDEM_RETURN_IF_ERROR(learner->Init());
  return learner;
}

}  // namespace

AlgorithmKind PpoKind() {
  using O = AlgorithmOptions;
  std::vector<ConfigField<O>> fields = CommonFields(2.5e-4, 0.5);
  const std::vector<ConfigField<O>> own = {
      MemberField<&O::unroll>({.name = "unroll",
                               .help = "steps of each environment between updates",
                               .range = Between(1, 1 << 20),
                               .default_value = 128}),
      MemberField<&O::epochs>({.name = "epochs",
                               .help = "passes over the steps of an update",
                               .range = Between(1, 1000),
                               .default_value = 4}),
      MemberField<&O::minibatches>({.name = "minibatches",
                                    .help = "parts into which each pass divides the steps",
                                    .range = Between(1, 1 << 20),
                                    .default_value = 4}),
      MemberField<&O::lambda>({.name = "lambda",
                               .help = "weight of longer returns in advantages (GAE)",
                               .range = Between(0, 1),
                               .default_value = 0.95}),
      MemberField<&O::clip>(
          {.name = "clip",
           .help = "probability ratios beyond 1 - clip and 1 + clip get no further gradient",
           .range = Above(0),
           .default_value = 0.2})};
  fields.insert(fields.end(), own.begin(), own.end());
  const std::vector<ConfigField<O>> losses = ActorCriticLossFields();
  fields.insert(fields.end(), losses.begin(), losses.end());
  return {.name = "ppo",
          .summary = "proximal policy optimization: on-policy, for choices and real actions",
          .reference = "Schulman et al., 2017",
          .fields = std::move(fields),
          .build = {.supports = [](const EnvironmentSpec&) { return absl::OkStatus(); },
                    .learner = MakePpo,
                    .policy = MakeActorCritic}};
}

}  // namespace tandem::rl
