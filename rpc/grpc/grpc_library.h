#ifndef TANDEM_RPC_GRPC_GRPC_LIBRARY_H_
#define TANDEM_RPC_GRPC_GRPC_LIBRARY_H_

namespace tandem::rpc {

// Keeps gRPC's threads until the process ends, once a channel or server was made. Without it, gRPC takes them
// down with its last object, and that waits up to 10 seconds for a poller that a large write has left behind.
void KeepGrpcLibrary();

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_LIBRARY_H_
