// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_GRPC_LIBRARY_H_
#define TANDEM_RPC_GRPC_GRPC_LIBRARY_H_

#include <string>

#include "absl/status/status.h"

namespace tandem::rpc {

// Returns the version of the gRPC library that this process runs with, "1.51.1".
std::string GrpcVersion();

// Starts gRPC, before a channel or server is created, and keeps its threads until the process ends. Otherwise
// gRPC stops its threads with its last object, which waits up to 10 seconds for a poller left behind by a
// large write. Returns FailedPrecondition in a process that was forked from one that had started gRPC: its
// threads do not exist there, so that every call would wait for its deadline.
absl::Status KeepGrpcLibrary();

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_LIBRARY_H_
