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

// Copies `bytes`, the encoding that Caller::ToBytes returns, into the metadata that `context` sends, under
// the key kCallerHeader. No effect if `bytes` is empty. Must be called before the call starts.
void AddCaller(const std::string& bytes, grpc::ClientContext* context);
// Returns the identity that the client has sent, or an empty Caller if it has sent none. If the bytes cannot
// be parsed, the epoch is below 0. Nothing proves that the identity is true. Must be called after the server
// has accepted the call.
Caller CallerOf(const grpc::ServerContext& context);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CALLER_METADATA_H_
