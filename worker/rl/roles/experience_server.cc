// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/experience_server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/status.h"
#include "replay/wire/messages.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/learner/impala_update.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<ExperienceServer>> ExperienceServer::Start(const RlSpec& spec,
                                                                          const ListenOptions& listen,
                                                                          RoleJob* job) {
  const collectives::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                          MakeEnvironment(spec.learner.environment));
  std::unique_ptr<ExperienceServer> server(new ExperienceServer);
  TANDEM_ASSIGN_OR_RETURN(server->replay_, replay::ReplayServer::Make({.name = env.member()}));
  const int learners = std::max(1, LearnersOf(env.role_rank, env.role_world_size, env.world_size));
  TANDEM_RETURN_IF_ERROR(server->replay_->CreateTable(
      replay::ToProto(UnrollTableOptions(spec.learner, environment->spec(), learners))));
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
