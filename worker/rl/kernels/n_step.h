// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_KERNELS_N_STEP_H_
#define TANDEM_WORKER_RL_KERNELS_N_STEP_H_

// Returns over several steps with a bootstrapped rest.

#include <cstddef>
#include <deque>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "worker/rl/kernels/rollout.h"

namespace tandem::rl {

// Writes for each transition the sum of the next n rewards, each multiplied by the discounts before it, plus
// the discounted value of what follows the last of them. Fewer than n are added up where the episode or the
// rollout ends before (short tails). n > 0. Thread-safe.
void NStepReturns(const Rollout& rollout, size_t n, absl::Span<float> returns);

// A transition over up to n steps of one episode.
struct NStepTransition {
  absl::Span<const float> observation;  // before the first step
  absl::Span<const float> action;       // in the first step
  float reward = 0;                     // the discounted sum
  // The factor of the value of `next_observation`: gamma to the power of the number of steps, or 0 if the
  // episode has terminated.
  float discount = 0;
  absl::Span<const float> next_observation;  // after the last step
};

// Turns the steps of one stream into transitions over n steps. The last n - 1 steps of an episode become
// shorter ones, so that every step begins one transition. Not thread-safe.
class NStepAdder {
 public:
  NStepAdder(size_t n, double gamma) : n_(n), gamma_(gamma) {}

  // Adds a step and calls `emit` for each transition that it completes, the oldest first. The spans that
  // `emit` sees are valid during the call. `next_observation` is the last one of the episode if it ends.
  void Add(absl::Span<const float> observation, absl::Span<const float> action, double reward,
           absl::Span<const float> next_observation, bool terminated, bool truncated,
           absl::FunctionRef<void(const NStepTransition&)> emit);

 private:
  struct Step {
    std::vector<float> observation, action;
    double reward = 0;
  };
  void Emit(size_t steps, absl::Span<const float> next_observation, bool terminated,
            absl::FunctionRef<void(const NStepTransition&)> emit);

  size_t n_;
  double gamma_;
  std::deque<Step> pending_;  // steps that have begun no transition yet, the oldest first
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_KERNELS_N_STEP_H_
