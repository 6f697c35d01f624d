// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/experience_server.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/random.h"
#include "base/status.h"
#include "replay/wire/messages.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/learner/dqn_update.h"
#include "worker/rl/learner/impala_update.h"
#include "worker/rl/roles/transition_actor.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<ExperienceServer>> ExperienceServer::Start(
    const RlSpec& spec, const cluster::ListenOptions& listen, RoleJob* job) {
  const cluster::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                          MakeEnvironment(spec.learner.environment));
  std::unique_ptr<ExperienceServer> server(new ExperienceServer);
  replay::ReplayServerOptions options = {.name = env.member()};
  if (env.role_rank == 0) {
    server->weights_ =
        std::make_unique<weights::WeightServer>(weights::WeightServerOptions{.name = env.member()});
    options.find_weights = [store = &server->weights_->store()](const replay::CommittedVersion& version) {
      return store->Find({.epoch = version.epoch, .number = static_cast<uint64_t>(version.version)});
    };
  }
  TANDEM_ASSIGN_OR_RETURN(server->replay_, replay::ReplayServer::Make(options));
  std::vector<replay::TableOptions> tables;
  if (spec.learner.algorithm.kind == "dqn") {
    tables = {TransitionTableOptions(spec.learner, env.role_world_size), EpisodeTableOptions()};
    tables[0].columns = TransitionColumns(environment->spec());
    // The servers must not draw alike.
    tables[0].seed = Mix64(tables[0].seed, static_cast<uint64_t>(env.role_rank));
  } else {
    const int learners = std::max(1, LearnersOf(env.role_rank, env.role_world_size, env.world_size));
    tables = {UnrollTableOptions(spec.learner, environment->spec(), learners)};
  }
  for (const replay::TableOptions& table : tables)
    TANDEM_RETURN_IF_ERROR(server->replay_->CreateTable(replay::ToProto(table)));
  std::vector<rpc::Service> services = {server->replay_->service()};
  if (server->weights_ != nullptr) services.push_back(server->weights_->service());
  TANDEM_ASSIGN_OR_RETURN(server->listening_,
                          cluster::Server::Start(&job->member(), {.address = listen}, std::move(services)));
  return server;
}

void ExperienceServer::Stop() {
  if (replay_ != nullptr) replay_->Stop();
  if (weights_ != nullptr) weights_->Stop();
  listening_ = nullptr;
}

}  // namespace tandem::rl
