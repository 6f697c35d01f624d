// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_CLIENT_GRPC_TRANSPORT_H_
#define TANDEM_RPC_GRPC_CLIENT_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/channel.h"
#include "rpc/transport/retrying_channel.h"

namespace tandem::rpc {

// Returns a transport over one gRPC connection to `target`, made when the first call needs it. ConnectGrpc
// returns a retrying channel over this transport. InvalidArgument if the target is malformed.
absl::StatusOr<std::unique_ptr<Transport>> MakeGrpcTransport(const std::string& target,
                                                             const ChannelOptions& options);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_GRPC_TRANSPORT_H_
