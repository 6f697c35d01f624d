// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_GRPC_LIBRARY_H_
#define TANDEM_RPC_GRPC_GRPC_LIBRARY_H_

namespace tandem::rpc {

// Keeps gRPC's threads until the process ends, once a channel or server has been created. Otherwise gRPC
// stops its threads with its last object, which waits up to 10 seconds for a poller left behind by a large
// write.
void KeepGrpcLibrary();

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_LIBRARY_H_
