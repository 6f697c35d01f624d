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
#include "rpc/security/certificate_files.h"
#include "rpc/security/grant.h"
#include "rpc/security/job_key.h"

namespace tandem::rpc {

inline constexpr char kTrustedNetworkVariable[] = "TANDEM_TRUSTED_NETWORK";

// Returns true if TCP connections are neither encrypted nor authenticated: TANDEM_TRUSTED_NETWORK is "1", as
// --trusted-network sets it. Then everybody on the network can read and change what is sent.
bool TrustedNetwork();

// What a process shows to servers: a job's key, or a grant. One of the pointers is nullptr.
struct Credential {
  std::shared_ptr<const JobKey> key;
  std::shared_ptr<const Grant> grant;

  // Returns `caller` with the token of the key, or the proof of the grant.
  Caller Identify(Caller caller) const;
  // Names the credential and where it was found, for messages: "key 0123456789 of /home/ann/.tandem/key".
  std::string ToString() const;
};

// Returns `caller` with `credential`, unless it has a token already.
Caller Identified(Caller caller, const Credential& credential);

// Returns the credential of this process: a key (JobKey::Load), or the grant in the file or text that would
// be its key. It is kept until the variables that
// name it change. An error is not kept: the next call tries again. Errors: those of
// JobKey::Load and Grant::FromText.
absl::StatusOr<Credential> ProcessCredential();
// Returns `key`, or ProcessCredential() if it is nullptr.
absl::StatusOr<Credential> CredentialOf(const std::shared_ptr<const JobKey>& key);
// Returns the key of this process, for what only members of a job do. Errors: those of ProcessCredential;
// FailedPrecondition if the process has a grant.
absl::StatusOr<std::shared_ptr<const JobKey>> ProcessKey();
// Makes `credential` that of this process, for channels and servers that are made later. For commands that
// look at a job whose key is not theirs. An empty one: it is loaded again.
void SetProcessCredential(Credential credential);

// What a process secures connections with.
struct TransportSecurity {
  // Derived from a key, or those of a grant. Empty if `files` is set.
  crypto::Certificates certificates;
  std::shared_ptr<const crypto::TlsContext> context;  // for connections that are made now
  // Those of the process's PKI, which change; nullptr: it has none.
  CertificateFiles* files = nullptr;
};

// Returns the secret of the certificates of a key (crypto::DeriveCertificates).
std::string CertificateSeed(const JobKey& key);

// Returns the certificates of the process's PKI (certificate_files.h) if it has one, else those of a
// credential. These are made once for each and kept for the life of the process. Errors: those of
// CertificateFiles::OfProcess, crypto::DeriveCertificates and crypto::TlsContext::Make.
absl::StatusOr<std::shared_ptr<const TransportSecurity>> SecurityOf(const Credential& credential);
// Returns the certificates that are derived from `key`, or from ProcessKey() if it is nullptr, whether the
// process has a PKI or not: who has one of them has the key. Errors: those of ProcessKey,
// crypto::DeriveCertificates and crypto::TlsContext::Make.
absl::StatusOr<std::shared_ptr<const TransportSecurity>> DerivedSecurity(std::shared_ptr<const JobKey> key);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SECURITY_TRANSPORT_SECURITY_H_
