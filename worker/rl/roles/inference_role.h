// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_INFERENCE_ROLE_H_
#define TANDEM_WORKER_RL_ROLES_INFERENCE_ROLE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/server.h"
#include "weights/client/remote_weights.h"
#include "worker/rl/inference/inference_server.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/roles/role_job.h"

namespace tandem::rl {

// The process of role `inference`: chooses the actions of actors whose job has `actors.inference: server`,
// with the weights in replay/0.
class InferenceRole {
 public:
  // Serves and registers with the job. Blocks until replay/0 has come, at most a minute. Errors: those of
  // RoleJob::Connect and Server::Start.
  static absl::StatusOr<std::unique_ptr<InferenceRole>> Start(const RlSpec& spec,
                                                              const cluster::ListenOptions& listen,
                                                              RoleJob* job);
  ~InferenceRole() { Stop(); }

  const std::string& address() const { return listening_->address(); }
  v1::InferenceStatistics Statistics() const { return server_->Statistics(); }
  // Ends all calls and connections. Idempotent.
  void Stop();

 private:
  InferenceRole() = default;

  std::unique_ptr<weights::RemoteWeights> weights_;
  std::unique_ptr<InferenceServer> server_;
  std::unique_ptr<cluster::Server> listening_;  // destroyed first
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_INFERENCE_ROLE_H_
