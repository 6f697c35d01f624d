#ifndef TANDEM_RPC_GRPC_UNIX_BUFFERS_H_
#define TANDEM_RPC_GRPC_UNIX_BUFFERS_H_

// For rpc/grpc only.

#include "grpcpp/support/channel_arguments.h"

namespace tandem::rpc {

// Lets unix sockets of such channels, or of such a server, hold megabytes instead of the system's default of
// 200 KB, where a sender of long messages sleeps five times a megabyte. (TCP sockets grow by themselves.) As
// far as net.core.wmem_max allows; nothing happens with a gRPC that is not the one whose sockets we know.
void WidenUnixSockets(grpc::ChannelArguments* arguments);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_UNIX_BUFFERS_H_
