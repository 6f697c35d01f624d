// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_TLS_CREDENTIALS_H_
#define TANDEM_RPC_GRPC_TLS_CREDENTIALS_H_

// TLS for gRPC connections, with certificates on both sides. Only used in rpc/grpc.

#include <memory>

#include "absl/status/statusor.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/support/channel_arguments.h"
#include "rpc/address.h"
#include "rpc/security/transport_security.h"

namespace tandem::rpc {

// Returns whether connections to `address` use TLS: not those of a unix socket, which only this machine's
// processes can reach, and none if TrustedNetwork().
bool UsesTls(const Address& address);

// Returns the credentials of a server at `address` and of channels to it: certificates, or none unless
// UsesTls(address). A server's handshake ends the connection of a client that has neither its key nor a
// grant. They are made once for each key. Errors: those of SecurityOf. A server's `key` may be nullptr:
// ProcessKey() then.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsFor(
    const Address& address, const std::shared_ptr<const JobKey>& key);
// `arguments` get the name that the server's certificate must have.
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ChannelCredentialsFor(
    const Address& address, const Credential& credential, grpc::ChannelArguments* arguments);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_TLS_CREDENTIALS_H_
