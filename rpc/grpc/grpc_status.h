// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_GRPC_STATUS_H_
#define TANDEM_RPC_GRPC_GRPC_STATUS_H_

// Converts between absl::Status and grpc::Status. Only used in rpc/grpc.

#include "absl/status/status.h"
#include "grpcpp/support/status.h"

namespace tandem::rpc {

// Converts to gRPC's status. A message that does not fit into gRPC's headers is truncated, with a note of its
// length: gRPC would replace a response with too much metadata by an error that does not name the cause.
// Payloads are not sent.
grpc::Status ToGrpcStatus(const absl::Status& status);

absl::Status FromGrpcStatus(const grpc::Status& status);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_GRPC_STATUS_H_
