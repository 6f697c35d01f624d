// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_ACTOR_ROLE_H_
#define TANDEM_WORKER_RL_ROLES_ACTOR_ROLE_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "replay/client/replay.h"
#include "rpc/diagnostics/process_status.h"
#include "weights/client/weights.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/roles/role_job.h"
#include "worker/rl/roles/transition_actor.h"

namespace tandem::rl {

struct ActorLoopOptions {
  UnrollActorOptions actor;
  // The longest time without weights, tickets or a place in the queue, after which the actor gives up.
  absl::Duration patience = absl::Minutes(10);
  const std::atomic<bool>* stop = nullptr;
  rpc::ProcessStatus* status = nullptr;  // gets the number of environment steps
  ActionSource* source = nullptr;        // chooses the actions; nullptr: the actor itself does, with weights
};

// Acts until the learner has published its last weights, or `stop` is set; blocks. `weights` may be nullptr
// if there is a `source`. A server that is away is waited for, with a warning now and then. Errors: those of
// UnrollActor, and DeadlineExceeded when `patience` has passed.
absl::Status RunActorLoop(const ActorLoopOptions& options, replay::Replay* replay, weights::Weights* weights);

struct TransitionActorLoopOptions {
  TransitionActorOptions actor;
  // The longest time without weights, while the learner is far behind, or without a replay server, after
  // which the actor gives up.
  absl::Duration patience = absl::Minutes(10);
  const std::atomic<bool>* stop = nullptr;
  rpc::ProcessStatus* status = nullptr;  // gets the number of environment steps
};

// Does the same for DQN: writes transitions, and waits while the actors are far ahead of the learner.
absl::Status RunTransitionActorLoop(const TransitionActorLoopOptions& options, replay::Replay* replay,
                                    weights::Weights* weights);

// The process of role `actor`: connects to its replay server, and to the weights in replay/0 or to its
// inference server. Acts, then waits for a learner that goes on after the one that has ended, and acts again,
// until `stop`: the launcher takes an actor that ends before the learners for one that has failed. With an
// inference server it acts for one learner. InvalidArgument, of which the learners are told: there are more
// replay servers than actors.
absl::Status RunActorRole(const RlSpec& spec, RoleJob* job, const std::atomic<bool>& stop);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_ACTOR_ROLE_H_
