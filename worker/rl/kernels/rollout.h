// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_KERNELS_ROLLOUT_H_
#define TANDEM_WORKER_RL_KERNELS_ROLLOUT_H_

// The transitions from which the estimators of this folder compute.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tandem::rl {

// `steps` transitions of each of `streams` streams, such as the copies of an environment. All spans have
// steps * streams elements; transition t of stream s is at t * streams + s. A stream may cross episodes.
struct Rollout {
  size_t steps = 0;
  size_t streams = 0;
  absl::Span<const float> rewards;
  // The factor of the value of what follows: 0 if the episode has terminated, and usually gamma otherwise,
  // also if a time limit has cut the episode off.
  absl::Span<const float> discounts;
  // The value of the observation before the transition, and of the one after it. The latter is that of the
  // old episode's last observation where an episode ends, and bootstraps the last transitions.
  absl::Span<const float> values, next_values;
  // 1 if an episode ends with the transition, by termination or truncation: the next transition of the stream
  // does not continue it.
  absl::Span<const uint8_t> ends;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_KERNELS_ROLLOUT_H_
