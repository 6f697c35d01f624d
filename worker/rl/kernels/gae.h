// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_KERNELS_GAE_H_
#define TANDEM_WORKER_RL_KERNELS_GAE_H_

#include "absl/types/span.h"
#include "worker/rl/kernels/rollout.h"

namespace tandem::rl {

// Writes the generalized advantage estimate of each transition (Schulman et al., ICLR 2016). It is the sum of
// the temporal differences r + discount * next_value - value from this transition to the end of its episode.
// Each is multiplied by lambda and the discount for every transition before it. advantages + values are the
// lambda-returns. Sums are computed in double. Thread-safe.
void GeneralizedAdvantages(const Rollout& rollout, double lambda, absl::Span<float> advantages);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_KERNELS_GAE_H_
