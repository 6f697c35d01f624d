// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/experience_server.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "replay/wire/messages.h"
#include "rpc/address.h"
#include "rpc/epoch_gate.h"
#include "rpc/network.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/envs/environment.h"

namespace tandem::rl {

absl::StatusOr<std::unique_ptr<ExperienceServer>> ExperienceServer::Start(const RlSpec& spec, RoleJob* job) {
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
  // Clients keep their channels to the address of an earlier life, so the new one must have the same.
  TANDEM_ASSIGN_OR_RETURN(std::string listen, job->EarlierReplayAddress());
  std::string host;
  if (listen.empty()) {
    TANDEM_ASSIGN_OR_RETURN(host, rpc::LocalAddressFor(job->store().address()));
    listen = rpc::IsLoopbackHost(host) ? "127.0.0.1:0" : rpc::ListenAddressFor(host, 0);
  } else {
    TANDEM_ASSIGN_OR_RETURN(const rpc::Address address, rpc::ParseAddress(listen));
    host = address.host;
  }
  TANDEM_ASSIGN_OR_RETURN(
      server->listening_,
      rpc::Server::Start({.listen = listen, .gate = std::make_shared<rpc::EpochGate>(env.caller())},
                         std::move(services)));
  if (absl::StrContains(host, ':') && host.front() != '[') host = absl::StrCat("[", host, "]");
  server->address_ = absl::StrCat(host, ":", server->listening_->port());
  TANDEM_RETURN_IF_ERROR(job->RegisterReplay(server->address_));
  return server;
}

void ExperienceServer::Stop() {
  if (replay_ != nullptr) replay_->Stop();
  if (weights_ != nullptr) weights_->Stop();
  if (listening_ != nullptr) listening_->Shutdown(absl::Seconds(1));
}

}  // namespace tandem::rl
