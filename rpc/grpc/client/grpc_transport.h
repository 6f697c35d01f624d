#ifndef TANDEM_RPC_GRPC_CLIENT_GRPC_TRANSPORT_H_
#define TANDEM_RPC_GRPC_CLIENT_GRPC_TRANSPORT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "rpc/channel.h"
#include "rpc/transport/retrying_channel.h"

namespace tandem::rpc {

// Attempts over one gRPC connection to `target`, which is made when the first call needs it. ConnectGrpc is a
// retrying channel around this. InvalidArgument for a malformed target.
absl::StatusOr<std::unique_ptr<Transport>> MakeGrpcTransport(const std::string& target,
                                                             const ChannelOptions& options);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_GRPC_TRANSPORT_H_
