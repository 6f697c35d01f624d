// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_POLICY_DISTRIBUTION_H_
#define TANDEM_WORKER_RL_POLICY_DISTRIBUTION_H_

// The distributions from which a stochastic policy draws its actions: categorical for choices, and a Gaussian
// with independent dimensions for real numbers.

#include <cstddef>

#include "absl/types/span.h"
#include "base/random.h"
#include "worker/rl/envs/environment.h"

namespace tandem::rl {

// The outputs of the network for one observation are its `head`: logits of the choices, or the means of the
// Gaussian. The logarithms of the standard deviations, `log_std`, are parameters that do not depend on the
// observation; choices have none. Real actions are in units of half the space's range, with 0 in its middle.
// Computes in double. Thread-safe.
class ActionDistribution {
 public:
  explicit ActionDistribution(const ActionSpace& space) : space_(space) {}

  size_t head_size() const {
    return static_cast<size_t>(space_.discrete() ? space_.choices : space_.dimensions);
  }
  size_t action_size() const { return static_cast<size_t>(space_.dimensions); }
  size_t log_std_size() const { return space_.discrete() ? 0 : action_size(); }

  // Draws an action, writes it and returns the logarithm of its probability (or density).
  double Sample(absl::Span<const float> head, absl::Span<const float> log_std, CounterRandom& random,
                absl::Span<float> action) const;
  // Writes the most probable action. The first one of equals is taken.
  void Mode(absl::Span<const float> head, absl::Span<float> action) const;

  struct Values {
    double log_probability = 0;
    double entropy = 0;
  };
  Values Evaluate(absl::Span<const float> head, absl::Span<const float> log_std,
                  absl::Span<const float> action) const;
  // Writes the gradient of d_log_probability * log_probability + d_entropy * entropy with respect to the
  // head, and adds that with respect to log_std.
  void Backward(absl::Span<const float> head, absl::Span<const float> log_std, absl::Span<const float> action,
                double d_log_probability, double d_entropy, absl::Span<float> d_head,
                absl::Span<float> d_log_std) const;

  // Writes the action as an environment takes it: choices are unchanged, real numbers are scaled to the
  // space's range and clipped to it.
  void ToEnvironment(absl::Span<const float> action, absl::Span<float> scaled) const;

 private:
  const ActionSpace space_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_POLICY_DISTRIBUTION_H_
