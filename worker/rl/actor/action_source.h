// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ACTOR_ACTION_SOURCE_H_
#define TANDEM_WORKER_RL_ACTOR_ACTION_SOURCE_H_

#include <cstddef>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "weights/model/model.h"

namespace tandem::rl {

// The weights with which actions were chosen.
struct ActedWith {
  weights::ModelVersion version;
  bool last = false;  // the learner has ended
};

// Chooses actions elsewhere than in the actor's process. Not thread-safe.
class ActionSource {
 public:
  virtual ~ActionSource() = default;
  // Writes an action of the policy's distribution for each of `rows` observations [rows x observation_size],
  // as the environment gives them, with the logarithm of its probability. Blocks at most until `deadline`.
  // Errors are those of the connection; after DeadlineExceeded and Unavailable the caller may ask again.
  virtual absl::StatusOr<ActedWith> Act(absl::Span<const float> observations, size_t rows,
                                        absl::Span<float> actions, absl::Span<float> log_probabilities,
                                        absl::Time deadline) = 0;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ACTOR_ACTION_SOURCE_H_
