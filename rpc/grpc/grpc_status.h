#ifndef TANDEM_RPC_GRPC_GRPC_STATUS_H_
#define TANDEM_RPC_GRPC_GRPC_STATUS_H_

// For rpc/grpc only: the one place where our status and gRPC's become each other.

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace tandem::rpc {

// The message is cut, with a note of how long it was, where it would not fit into gRPC's headers: gRPC would
// replace an answer with too much metadata by an error that says nothing about the cause. Payloads do not
// travel.
grpc::Status ToGrpcStatus(const absl::Status& status);

absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_STATUS_H_
