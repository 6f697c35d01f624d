// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_DQN_ROLE_LEARNER_H_
#define TANDEM_WORKER_RL_ROLES_DQN_ROLE_LEARNER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/process_group.h"
#include "replay/client/replay.h"
#include "weights/client/weights.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/roles/role_learner.h"

namespace tandem::rl {

// Makes the learner of DQN whose actors are elsewhere, as in Ape-X (Horgan et al., ICLR 2018): the process of
// role `learner`. `shards` are all replay servers, each with a table of transitions and one of episodes. All
// ranks of `group` sample from all shards, average their gradients and so keep the same parameters bit by
// bit; rank 0 counts the steps of the actors and publishes. All must outlive the learner. All ranks must call
// Advance equally often; they agree on when to stop. `options.servers` is not used.
//
// env_steps() counts the steps for which the updates have been done: one update for each
// algorithm.update_every, after the first algorithm.learning_starts. Actors wait while they are far ahead
// (GreatestLead). The learner goes on without the transitions of a replay server that has started again,
// which it counts (`replay/lost_transitions` of figures()). If less than algorithm.learning_starts are left,
// the tables are filled again first.
//
// InvalidArgument: a wrong option of the algorithm, or a policy that normalizes observations, whose averages
// nobody would count. Errors of Advance: DeadlineExceeded if no transitions have come for options.patience,
// or no batch could be drawn for as long; FailedPrecondition if a table is one of another job, or another
// learner has taken over; those of DqnUpdate, of the group, of ShardedSampler and of publishing.
absl::StatusOr<std::unique_ptr<Learner>> MakeDqnRoleLearner(const RoleLearnerOptions& options,
                                                            std::vector<replay::Replay*> shards,
                                                            weights::Weights* weights,
                                                            collectives::ProcessGroup* group);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_DQN_ROLE_LEARNER_H_
