#ifndef TANDEM_RPC_GRPC_CALLER_METADATA_H_
#define TANDEM_RPC_GRPC_CALLER_METADATA_H_

// For rpc/grpc only: who calls (rpc/caller.h), in the metadata of a stream or of a single call.

#include <string>

#include "grpcpp/client_context.h"
#include "grpcpp/server_context.h"
#include "rpc/caller.h"

namespace tandem::rpc {

// `bytes`: Caller::ToBytes; nothing is added for "". Before the call starts.
void AddCaller(const std::string& bytes, grpc::ClientContext* context);
// What came; the default when nothing did. Once the call is accepted.
Caller CallerOf(const grpc::ServerContext& context);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CALLER_METADATA_H_
