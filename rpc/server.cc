#include "rpc/server.h"

#include <utility>

#include "rpc/grpc/grpc_server.h"

namespace tandem::rpc {

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      std::vector<Service> services) {
  return StartGrpcServer(options, std::move(services));
}

}  // namespace tandem::rpc
