// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRYPTO_CERTIFICATES_H_
#define TANDEM_BASE_CRYPTO_CERTIFICATES_H_

// Certificates that are derived from a secret, for TLS between processes that share it.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tandem::crypto {

// The certificates of one process, as PEM.
struct Certificates {
  std::string authority;    // of the certificate authority that signs all of them
  std::string certificate;  // of this process
  std::string private_key;  // of `certificate`
};

// Size of the secret in bytes.
inline constexpr size_t kCertificateSeedBytes = 32;
// The name (DNS) that every derived certificate is valid for. Addresses are not in the certificates: who has
// one has the secret, and that is what a peer wants to know.
inline constexpr char kCertificateHost[] = "tandem";

// Returns the certificates of a process which has the secret `seed`. The authority's key is `seed` itself
// (Ed25519), so all processes with the secret get the same authority, byte by byte, and nobody else can sign
// for it. The process's key is a new one (ECDSA, P-256). Its certificate names `process` ("worker/3") as
// URI:tandem://worker/3 and holds from the year 2000 to 9999, since hosts need not agree on the time.
// InvalidArgument if `seed` has another size. Takes about 2 ms.
absl::StatusOr<Certificates> DeriveCertificates(absl::string_view seed, absl::string_view process);

// Returns certificates with which a process without the secret can connect to those that have it, until
// `expires`. It is no server to them: the certificate has no name (DNS) and is for clients only. Errors and
// time as of DeriveCertificates.
absl::StatusOr<Certificates> IssueClientCertificate(absl::string_view seed, absl::string_view process,
                                                    absl::Time expires);

}  // namespace tandem::crypto

#endif  // TANDEM_BASE_CRYPTO_CERTIFICATES_H_
