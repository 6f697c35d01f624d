// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_POLICY_ACTOR_CRITIC_H_
#define TANDEM_WORKER_RL_POLICY_ACTOR_CRITIC_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/random.h"
#include "worker/nn/mlp.h"
#include "worker/rl/policy/distribution.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// A stochastic policy and an estimate of the value, each with a network of its own. All weights begin
// orthogonal: with gain sqrt(2) in hidden layers, 0.01 at the policy's head, so that the first policy is
// nearly uniform, and 1 at the value's. Observations are normalized ones (Policy::Normalize). Not
// thread-safe.
class ActorCritic : public Policy {
 public:
  ActorCritic(const EnvironmentSpec& environment, const PolicyOptions& options, uint64_t seed);

  const ActionDistribution& distribution() const { return distribution_; }

  // Draws an action for each of `batch` observations, row by row, and writes it with the logarithm of its
  // probability and the observation's value. The actions are those of the distribution (see ToEnvironment).
  void Act(const float* observations, size_t batch, CounterRandom& random, absl::Span<float> actions,
           absl::Span<float> log_probabilities, absl::Span<float> values);
  // Writes the values of `batch` observations.
  void Values(const float* observations, size_t batch, absl::Span<float> values);

  // Computes heads [batch x head_size] and values [batch] for a step of the learner.
  void Forward(const float* observations, size_t batch);
  absl::Span<const float> head(size_t row) const {
    return {heads_.data() + row * distribution_.head_size(), distribution_.head_size()};
  }
  float value(size_t row) const { return values_[row]; }
  absl::Span<const float> log_std() const {
    return {parameters_.value(log_std_), distribution_.log_std_size()};
  }
  // The buffers for the gradients of heads, values and log_std, which the caller fills before Backward.
  absl::Span<float> d_head(size_t row) {
    return {d_heads_.data() + row * distribution_.head_size(), distribution_.head_size()};
  }
  float& d_value(size_t row) { return d_values_[row]; }
  absl::Span<float> d_log_std() { return {parameters_.gradient(log_std_), distribution_.log_std_size()}; }
  // Writes the gradients of all parameters but log_std. `observations` and `batch` are those of Forward.
  void Backward(const float* observations, size_t batch);

 protected:
  void BestActions(const float* observations, size_t batch, absl::Span<float> actions) override;

 private:
  void Reserve(size_t batch);

  const ActionDistribution distribution_;
  worker::Mlp actor_, critic_;
  size_t log_std_ = 0;
  worker::AlignedFloats heads_, values_, d_heads_, d_values_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_POLICY_ACTOR_CRITIC_H_
