#ifndef TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_H_
#define TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Server::Start's gRPC side: what it promises is told there.
absl::StatusOr<std::unique_ptr<Server>> StartGrpcServer(const ServerOptions& options,
                                                        std::vector<Service> services);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_H_
