// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_EXPERIENCE_SERVER_H_
#define TANDEM_WORKER_RL_ROLES_EXPERIENCE_SERVER_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cluster/server.h"
#include "replay/server/replay_server.h"
#include "weights/server/weight_server.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/roles/role_job.h"

namespace tandem::rl {

// The process of role `replay`: serves the queue of unrolls, or a part of the table of transitions (DQN),
// and, in replay/0, the weights. Everything is in memory: a server that has started again is empty, at the
// same address. What actors had delivered is then lost and counted (docs/replay.md), and the learner
// publishes its weights again.
class ExperienceServer {
 public:
  // Serves and registers with the job. Errors: those of cluster::Server::Start.
  static absl::StatusOr<std::unique_ptr<ExperienceServer>> Start(const RlSpec& spec,
                                                                 const cluster::ListenOptions& listen,
                                                                 RoleJob* job);
  ~ExperienceServer() { Stop(); }

  const std::string& address() const { return listening_->address(); }
  // Ends all calls and connections. Idempotent.
  void Stop();

 private:
  ExperienceServer() = default;

  std::unique_ptr<weights::WeightServer> weights_;  // of replay/0; outlives replay_, which looks into it
  std::unique_ptr<replay::ReplayServer> replay_;
  std::unique_ptr<cluster::Server> listening_;  // destroyed first
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_EXPERIENCE_SERVER_H_
