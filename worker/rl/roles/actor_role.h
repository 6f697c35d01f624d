// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_ACTOR_ROLE_H_
#define TANDEM_WORKER_RL_ROLES_ACTOR_ROLE_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "replay/client/replay.h"
#include "weights/client/weights.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/roles/role_job.h"

namespace tandem::rl {

struct ActorLoopOptions {
  UnrollActorOptions actor;
  // The longest time without weights or without a place in the queue, after which the actor gives up.
  absl::Duration patience = absl::Minutes(10);
  const std::atomic<bool>* stop = nullptr;
};

// Acts until the learner has published its last weights, or `stop` is set; blocks. A server that is away is
// waited for, with a warning now and then. Errors: those of UnrollActor, and DeadlineExceeded or Unavailable
// when `patience` has passed.
absl::Status RunActorLoop(const ActorLoopOptions& options, replay::Replay* replay, weights::Weights* weights);

// The process of role `actor`: connects to its replay server and to the weights in replay/0, acts, and then
// waits for `stop`, because the launcher takes an actor that ends before the learners for one that has
// failed.
absl::Status RunActorRole(const RlSpec& spec, RoleJob* job, const std::atomic<bool>& stop);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_ACTOR_ROLE_H_
