// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/kernels/n_step.h"

#include <utility>

namespace tandem::rl {

void NStepReturns(const Rollout& rollout, size_t n, absl::Span<float> returns) {
  for (size_t stream = 0; stream < rollout.streams; ++stream) {
    for (size_t t = 0; t < rollout.steps; ++t) {
      double sum = 0, factor = 1;
      for (size_t last = t; last < rollout.steps; ++last) {
        const size_t i = last * rollout.streams + stream;
        sum += factor * rollout.rewards[i];
        factor *= rollout.discounts[i];
        if (last + 1 == t + n || last + 1 == rollout.steps || rollout.ends[i] != 0) {
          sum += factor * rollout.next_values[i];
          break;
        }
      }
      returns[t * rollout.streams + stream] = static_cast<float>(sum);
    }
  }
}

void NStepAdder::Emit(size_t steps, absl::Span<const float> next_observation, bool terminated,
                      absl::FunctionRef<void(const NStepTransition&)> emit) {
  double sum = 0, factor = 1;
  for (size_t i = 0; i < steps; ++i) {
    sum += factor * pending_[i].reward;
    factor *= gamma_;
  }
  emit({.observation = pending_.front().observation,
        .action = pending_.front().action,
        .reward = static_cast<float>(sum),
        .discount = terminated ? 0.0f : static_cast<float>(factor),
        .next_observation = next_observation});
  pending_.pop_front();
}

void NStepAdder::Add(absl::Span<const float> observation, absl::Span<const float> action, double reward,
                     absl::Span<const float> next_observation, bool terminated, bool truncated,
                     absl::FunctionRef<void(const NStepTransition&)> emit) {
  pending_.push_back({.observation = {observation.begin(), observation.end()},
                      .action = {action.begin(), action.end()},
                      .reward = reward});
  if (pending_.size() == n_) Emit(n_, next_observation, terminated, emit);
  if (!terminated && !truncated) return;
  while (!pending_.empty()) Emit(pending_.size(), next_observation, terminated, emit);
}

}  // namespace tandem::rl
