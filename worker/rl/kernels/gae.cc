// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/kernels/gae.h"

namespace tandem::rl {

void GeneralizedAdvantages(const Rollout& rollout, double lambda, absl::Span<float> advantages) {
  for (size_t stream = 0; stream < rollout.streams; ++stream) {
    double advantage = 0;
    for (size_t t = rollout.steps; t-- > 0;) {
      const size_t i = t * rollout.streams + stream;
      const double discount = rollout.discounts[i];
      const double difference = rollout.rewards[i] + discount * rollout.next_values[i] - rollout.values[i];
      advantage = difference + (rollout.ends[i] != 0 ? 0.0 : discount * lambda * advantage);
      advantages[i] = static_cast<float>(advantage);
    }
  }
}

}  // namespace tandem::rl
