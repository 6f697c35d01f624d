// SPDX-License-Identifier: Apache-2.0
#include "rpc/server.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "rpc/grpc/server/grpc_server.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/shm/shm_server.h"
#include "rpc/transport/traced_call.h"

namespace tandem::rpc {
namespace {

// Serves gRPC and shared memory concurrently.
class GrpcAndShmServer : public Server {
 public:
  GrpcAndShmServer(std::unique_ptr<shm::ShmServer> shm, std::unique_ptr<Server> grpc)
      : shm_(std::move(shm)), grpc_(std::move(grpc)) {}
  ~GrpcAndShmServer() override { Shutdown(absl::Seconds(5)); }

  int port() const override { return grpc_->port(); }
  void SetServing(const std::string& service, bool serving) override { grpc_->SetServing(service, serving); }
  void Shutdown(absl::Duration grace) override {
    // Both shut down at the same time, so that neither takes calls while the other finishes its own.
    std::thread shm([this, grace] { shm_->Shutdown(grace); });
    grpc_->Shutdown(grace);
    shm.join();
  }

 private:
  const std::unique_ptr<shm::ShmServer> shm_;  // the gRPC server's OfferService refers to it
  const std::unique_ptr<Server> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      std::vector<Service> services) {
  if (options.transport != "auto" && options.transport != "grpc") {
    return absl::InvalidArgumentError(
        absl::StrCat("ServerOptions::transport is \"", options.transport, "\"; expected auto or grpc"));
  }
  for (Service& service : services) {
    if (options.gate != nullptr) service = Gated(std::move(service), options.gate);
    service = Traced(std::move(service));
  }
  if (options.transport == "grpc") {
    services.push_back(shm::OfferService(nullptr, "the server is told to serve gRPC only"));
    return StartGrpcServer(options, std::move(services));
  }
  absl::StatusOr<std::unique_ptr<shm::ShmServer>> shm =
      shm::ShmServer::Start({.max_message_bytes = options.max_message_bytes,
                             .payload_bytes = options.shared_memory_bytes,
                             .threads = options.threads,
                             .max_connections = options.max_shared_memory_connections},
                            services);
  if (absl::IsInvalidArgument(shm.status())) return shm.status();
  if (!shm.ok()) {
    LogInfo(absl::StrCat("serving gRPC only: ", shm.status().message()));
    services.push_back(shm::OfferService(nullptr, std::string(shm.status().message())));
    return StartGrpcServer(options, std::move(services));
  }
  services.push_back(shm::OfferService(shm->get(), ""));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Server> grpc, StartGrpcServer(options, std::move(services)));
  return std::make_unique<GrpcAndShmServer>(*std::move(shm), std::move(grpc));
}

}  // namespace tandem::rpc
