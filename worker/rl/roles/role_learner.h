// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_ROLE_LEARNER_H_
#define TANDEM_WORKER_RL_ROLES_ROLE_LEARNER_H_

#include <atomic>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/wait_log.h"
#include "collectives/process_group.h"
#include "replay/client/replay.h"
#include "weights/client/weights.h"
#include "worker/rl/learner/learner.h"

namespace tandem::rl {

struct RoleLearnerOptions {
  LearnerOptions learner;
  int servers = 1;  // replay servers: the learner of rank i takes unrolls from server i modulo their number
  // The longest time without a batch, or without its replay server, after which the learner fails and names
  // what it has waited for.
  absl::Duration patience = absl::Minutes(10);
  // Set when the process is asked to stop, by any thread: as RequestStop(interrupted), which no thread can
  // call while Advance waits for unrolls or servers. nullptr: it is not.
  const std::atomic<bool>* stop = nullptr;
  // Logs the waits for other learners and for servers. Must outlive the learner. nullptr: they are not
  // logged.
  WaitLog* waits = nullptr;
};

// Names the waits of learners for WaitLog.
inline constexpr char kForTheBegin[] = "the other learners, before the first update",
                      kForGradients[] = "the other learners' gradients",
                      kForTheEnd[] = "the other learners, after the last update";

// Makes a learner whose actors are elsewhere: the process of role `learner`. It takes unrolls from the table
// of `replay`. All ranks of `group` average their gradients, and so keep the same parameters bit by bit; rank
// 0 publishes them to `weights`, as do no others, again if they are lost while it waits, and each rank
// commits each version to a paced table of its replay server. All three must outlive the learner. The first
// Advance waits for rank 0, which begins to publish. All ranks must call Advance equally often; they agree on
// when to stop.
//
// env_steps() counts the steps of the unrolls that all ranks have taken. InvalidArgument: the algorithm has
// no actors, or normalizes observations with more than one learner. Errors of Advance: DeadlineExceeded if no
// batch has come, FailedPrecondition if the table is one of another job, or another learner has taken over,
// those of ImpalaUpdate, of the group, and of publishing.
absl::StatusOr<std::unique_ptr<Learner>> MakeRoleLearner(const RoleLearnerOptions& options,
                                                         replay::Replay* replay, weights::Weights* weights,
                                                         collectives::ProcessGroup* group);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_ROLE_LEARNER_H_
