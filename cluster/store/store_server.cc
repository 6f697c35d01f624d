// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store_server.h"

#include <utility>

#include "base/status.h"
#include "cluster/store/revoked_grants.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/security/transport_security.h"

namespace tandem::cluster {

std::shared_ptr<rpc::EpochGate> StoreGate(const rpc::JobKey& key) {
  return std::make_shared<rpc::EpochGate>(key, rpc::Caller{.member = "the job's store"});
}

absl::StatusOr<std::unique_ptr<StoreServer>> StoreServer::Start(const std::string& listen, Clock* clock,
                                                                std::shared_ptr<rpc::EpochGate> gate,
                                                                StoreServerOptions asked) {
  std::unique_ptr<StoreServer> store(new StoreServer(asked.limits));
  if (gate == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<const rpc::JobKey> key, rpc::ProcessKey());
    gate = StoreGate(*key);
  }
  if (!asked.disk.directory.empty()) {
    TANDEM_ASSIGN_OR_RETURN(store->disk_, StoreDisk::Open(asked.disk.directory, &store->store_,
                                                          std::move(asked.disk.on_failure)));
  }
  store->membership_.emplace(clock, store->disk_ == nullptr ? NewIncarnation() : store->disk_->incarnation());
  if (store->disk_ != nullptr) store->disk_->Restore(&*store->membership_);
  store->service_ = std::make_unique<StoreService>(&store->store_, &*store->membership_, store->disk_.get());
  rpc::ServerOptions options;
  options.listen = listen;
  options.transport = "grpc";  // calls are rare
  // The largest MultiSet: its values, and as many keys as one call may name.
  options.max_message_bytes = kMaxStoreBatchBytes + kMaxStoreWaitKeys * (kMaxStoreKeyBytes + 16);
  options.max_connections = asked.max_connections;
  options.gate = std::move(gate);
  options.key = std::move(asked.key);
  options.gate->grants().SetFetch([store = &store->store_](const auto& done) {
    absl::StatusOr<std::vector<std::string>> keys = store->List(kRevokedGrants);
    done(keys.ok() ? IdsOfRevokedGrants(*keys) : rpc::GrantChecker::RevokedIds(keys.status()));
  });
  store->gate_ = options.gate;
  std::vector<rpc::Service> services;
  services.push_back(store->service_->MakeService());
  TANDEM_ASSIGN_OR_RETURN(store->server_, rpc::Server::Start(options, std::move(services)));
  return store;
}

StoreServer::~StoreServer() {
  if (server_ != nullptr) Shutdown(absl::ZeroDuration());
}

void StoreServer::Shutdown(absl::Duration grace) {
  service_->StopWaits();
  server_->Shutdown(grace);
  gate_->grants().SetFetch(nullptr);
}

}  // namespace tandem::cluster
