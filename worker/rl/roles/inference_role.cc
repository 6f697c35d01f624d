// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/inference_role.h"

#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<InferenceRole>> InferenceRole::Start(const RlSpec& spec,
                                                                    const cluster::ListenOptions& listen,
                                                                    RoleJob* job) {
  const cluster::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                          MakeEnvironment(spec.learner.environment));
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> first,
                          job->Connect(kReplayRole, 0, absl::Minutes(1)));
  std::unique_ptr<InferenceRole> role(new InferenceRole);
  role->weights_ = std::make_unique<weights::RemoteWeights>(std::move(first));
  // Servers, and the lives of a server, draw different actions.
  const uint64_t life = Mix64(static_cast<uint64_t>(env.role_rank), job->life());
  role->server_ = std::make_unique<InferenceServer>(
      InferenceServerOptions{.name = env.member(),
                             .policy = spec.learner.policy,
                             .seed = Mix64(spec.learner.seeds.policy, life)},
      environment->spec(), role->weights_.get());
  TANDEM_ASSIGN_OR_RETURN(role->listening_, cluster::Server::Start(&job->member(), {.address = listen},
                                                                   {role->server_->service()}));
  return role;
}

void InferenceRole::Stop() {
  if (server_ != nullptr) server_->Stop();
  listening_ = nullptr;
}

}  // namespace tandem::rl
