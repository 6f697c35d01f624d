// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_KERNELS_VTRACE_H_
#define TANDEM_WORKER_RL_KERNELS_VTRACE_H_

#include "absl/types/span.h"
#include "worker/rl/kernels/rollout.h"

namespace tandem::rl {

struct VTraceOptions {
  double lambda = 1.0;          // multiplies the trace coefficients c
  double clip_rho = 1.0;        // upper limit of a ratio in a temporal difference
  double clip_c = 1.0;          // upper limit of a ratio in a trace coefficient
  double clip_advantage = 1.0;  // upper limit of a ratio in an advantage
};

// V-trace (Espeholt et al., ICML 2018): corrects values for data of another policy. `ratios` are the
// probabilities of the actions under the target policy, divided by those under the policy that acted; finite
// and at least 0. Writes for each transition
//
// - errors: the V-trace target minus the value
//
// - advantages: clipped ratio * (r + discount * (next target) - value), the factor of a policy gradient; the
//   next target is mixed with the next value if lambda is less than 1
//
// All spans have the size of the rollout's. Sums are computed in double. Thread-safe.
void VTrace(const Rollout& rollout, absl::Span<const float> ratios, const VTraceOptions& options,
            absl::Span<float> errors, absl::Span<float> advantages);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_KERNELS_VTRACE_H_
