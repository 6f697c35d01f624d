// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/kernels/vtrace.h"

#include <algorithm>

namespace tandem::rl {

void VTrace(const Rollout& rollout, absl::Span<const float> ratios, const VTraceOptions& options,
            absl::Span<float> errors, absl::Span<float> advantages) {
  for (size_t stream = 0; stream < rollout.streams; ++stream) {
    double error = 0;  // of the next transition
    for (size_t t = rollout.steps; t-- > 0;) {
      const size_t i = t * rollout.streams + stream;
      const double ratio = ratios[i], discount = rollout.discounts[i], value = rollout.values[i];
      // Nothing that follows belongs to this episode, or is known.
      if (rollout.ends[i] != 0 || t + 1 == rollout.steps) error = 0;
      const double target = rollout.next_values[i] + options.lambda * error;
      advantages[i] = static_cast<float>(std::min(options.clip_advantage, ratio) *
                                         (rollout.rewards[i] + discount * target - value));
      const double difference = rollout.rewards[i] + discount * rollout.next_values[i] - value;
      error = std::min(options.clip_rho, ratio) * difference +
              discount * options.lambda * std::min(options.clip_c, ratio) * error;
      errors[i] = static_cast<float>(error);
    }
  }
}

}  // namespace tandem::rl
