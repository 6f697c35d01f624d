// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/caller_metadata.h"

namespace tandem::rpc {

void AddCaller(const std::string& bytes, grpc::ClientContext* context) {
  if (!bytes.empty()) context->AddMetadata(kCallerHeader, bytes);
}

Caller CallerOf(const grpc::ServerContext& context) {
  const auto found = context.client_metadata().find(kCallerHeader);
  if (found == context.client_metadata().end()) return {};
  return Caller::FromBytes({found->second.data(), found->second.size()});
}

}  // namespace tandem::rpc
