// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_H_
#define TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Starts the gRPC part of Server::Start, with the same contract.
absl::StatusOr<std::unique_ptr<Server>> StartGrpcServer(const ServerOptions& options,
                                                        std::vector<Service> services);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_GRPC_SERVER_H_
