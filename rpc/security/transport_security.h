// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SECURITY_TRANSPORT_SECURITY_H_
#define TANDEM_RPC_SECURITY_TRANSPORT_SECURITY_H_

// What secures the TCP connections of a process: those of gRPC and those of the mesh of collectives. Both
// sides of a connection show certificates that they derive from their key (base/crypto/certificates.h). A
// process with another key fails in the handshake of TLS, so no other code meets its bytes. Unix sockets and
// shared memory need no TLS.

#include <memory>

#include "absl/status/statusor.h"
#include "base/crypto/certificates.h"
#include "base/crypto/tls_socket.h"
#include "rpc/security/job_key.h"

namespace tandem::rpc {

inline constexpr char kTrustedNetworkVariable[] = "TANDEM_TRUSTED_NETWORK";

// Returns true if TCP connections are neither encrypted nor authenticated: TANDEM_TRUSTED_NETWORK is "1", as
// --trusted-network sets it. Then everybody on the network can read and change what is sent.
bool TrustedNetwork();

// Returns the key of this process (JobKey::Load). It is loaded once. An error is not kept: the next call
// tries again.
absl::StatusOr<std::shared_ptr<const JobKey>> ProcessKey();
// Makes `key` that of this process, for channels and servers that are made later. For commands that look at a
// job whose key is not theirs.
void SetProcessKey(JobKey key);

// What a process secures connections with.
struct TransportSecurity {
  crypto::Certificates certificates;
  std::shared_ptr<const crypto::TlsContext> context;
};

// Returns the certificates of `key`, or of ProcessKey() if it is nullptr. They are made once for each key and
// kept for the life of the process. Errors: those of ProcessKey.
absl::StatusOr<std::shared_ptr<const TransportSecurity>> SecurityOf(std::shared_ptr<const JobKey> key);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_TRANSPORT_SECURITY_H_
