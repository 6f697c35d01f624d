// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_CALLER_METADATA_H_
#define TANDEM_RPC_GRPC_CALLER_METADATA_H_

// Carries the caller's identity (rpc/caller.h) in the metadata of a stream or a single call. Only used in
// rpc/grpc.

#include <string>

#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
#include "rpc/caller.h"

namespace tandem::rpc {

// Adds `bytes` (Caller::ToBytes) to the metadata; adds nothing if it is empty. Must be called before the call
// starts.
void AddCaller(const std::string& bytes, grpc::ClientContext* context);
// Returns the received identity, or an empty Caller if there is none. Must be called after the call was
// accepted.
Caller CallerOf(const grpc::ServerContext& context);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CALLER_METADATA_H_
