// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRYPTO_PKI_H_
#define TANDEM_BASE_CRYPTO_PKI_H_

// Certificates that are kept in files: those of an infrastructure of their own (PKI), such as cert-manager's
// or SPIFFE's, or of `tandem cert`. The texts are PEM.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/crypto/certificates.h"

namespace tandem::crypto {

// Holds what a certificate says of itself. A plain value.
struct CertificateFacts {
  std::string subject;  // "CN = worker-3"
  std::string issuer;
  std::vector<std::string> names;  // "DNS:tandem", "URI:spiffe://..."
  absl::Time from;
  absl::Time until;
  bool authority = false;
  bool for_servers = false;  // it may be a server's certificate, and a client's
  bool for_clients = false;
};

// Returns the facts of the certificates in `pem`, in their order. InvalidArgument if there is none, or one
// that cannot be read.
absl::StatusOr<std::vector<CertificateFacts>> ReadCertificates(absl::string_view pem);

// Checks that a process can use `certificates` at the time `now` with all others of the same authority. The
// field `authority` may have several certificates, as while one replaces another. The certificates between
// `certificate` and the authority may follow it. Returns when the certificate expires. InvalidArgument says
// what is wrong:
//
//   - a text cannot be read
//   - the private key is not the certificate's, or its issuer is not in `authority`
//   - a date or a use does not fit
//   - the name kCertificateHost (DNS) is missing
absl::StatusOr<absl::Time> CheckCertificates(const Certificates& certificates, absl::Time now);

// Returns a new authority (ECDSA, P-256) which is good until `until`: `certificate` and `authority` are its
// own.
absl::StatusOr<Certificates> MakeCertificateAuthority(absl::string_view name, absl::Time until);
// Returns a new pair for a process that `authority`, as MakeCertificateAuthority returns it, signs: for
// servers and clients, of the name kCertificateHost and the URI tandem://`process`. InvalidArgument if the
// authority cannot be read or its key is another one.
absl::StatusOr<Certificates> IssueCertificate(const Certificates& authority, absl::string_view process,
                                              absl::Time until);

}  // namespace tandem::crypto

#endif  // TANDEM_BASE_CRYPTO_PKI_H_
