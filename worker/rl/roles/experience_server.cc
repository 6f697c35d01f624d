// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/experience_server.h"

#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/wire/messages.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/envs/environment.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<ExperienceServer>> ExperienceServer::Start(const RlSpec& spec,
                                                                          const ListenOptions& listen,
                                                                          RoleJob* job) {
  const collectives::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                          MakeEnvironment(spec.learner.environment));
  std::unique_ptr<ExperienceServer> server(new ExperienceServer);
  TANDEM_ASSIGN_OR_RETURN(server->replay_, replay::ReplayServer::Make({.name = env.member()}));
  TANDEM_RETURN_IF_ERROR(server->replay_->CreateTable(replay::ToProto(
      UnrollQueue(environment->spec(), static_cast<uint64_t>(spec.learner.algorithm.queue)))));
  std::vector<rpc::Service> services = {server->replay_->service()};
  if (env.role_rank == 0) {
    server->weights_ =
        std::make_unique<weights::WeightServer>(weights::WeightServerOptions{.name = env.member()});
    services.push_back(server->weights_->service());
  }
  TANDEM_ASSIGN_OR_RETURN(server->listening_, Listening::Start(std::move(services), listen, job));
  return server;
}

void ExperienceServer::Stop() {
  if (replay_ != nullptr) replay_->Stop();
  if (weights_ != nullptr) weights_->Stop();
  listening_ = nullptr;
}

}  // namespace tandem::rl
