// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_UNIX_BUFFERS_H_
#define TANDEM_RPC_GRPC_UNIX_BUFFERS_H_

// Enlarges the buffers of unix sockets. Only used in rpc/grpc.

#include "grpcpp/support/channel_arguments.h"

namespace tandem::rpc {

// Lets the unix sockets of channels with these arguments buffer megabytes. With the system's
// default of 200 KB the sender of a long message sleeps five times per megabyte. (TCP sockets grow by
// themselves.) Limited by net.core.wmem_max. No effect with a gRPC release whose sockets are not known here.
void WidenUnixSockets(grpc::ChannelArguments* arguments);

// Enlarges the buffer of one socket if it is a unix socket. Servers use it (server/connection_limit.h).
void WidenUnixSocket(int fd);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_UNIX_BUFFERS_H_
