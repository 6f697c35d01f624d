// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRYPTO_MAKE_CERTIFICATES_H_
#define TANDEM_BASE_CRYPTO_MAKE_CERTIFICATES_H_

// How certificates are made, for those derived from a secret and those of files. Only used in base/crypto.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/crypto/openssl.h"

namespace tandem::crypto {

// Returns Internal with the reason that OpenSSL gives.
absl::Status OpenSslError(absl::string_view what);

absl::StatusOr<std::string> ToPem(X509* certificate);
absl::StatusOr<std::string> ToPem(EVP_PKEY* private_key);
// Returns a memory that OpenSSL reads. It refers to `text`.
OwnedBio OpenText(absl::string_view text);

// As OpenSSL writes the end of the year 9999.
inline constexpr char kNever[] = "99991231235959Z";
// Returns a time in that form.
std::string Asn1Time(absl::Time time);

// Returns an authority that `key` signs itself. nullptr if OpenSSL fails; so do the next functions.
OwnedCertificate MakeAuthority(EVP_PKEY* key, absl::string_view name, const std::string& until);

// Describes a process's certificate: until when it is good, for which use, and its names.
struct Leaf {
  std::string until = kNever;
  std::string usage = "serverAuth,clientAuth";
  std::string names;  // as OpenSSL's configuration writes them
};
OwnedCertificate MakeLeaf(EVP_PKEY* key, const Leaf& what, X509* authority, EVP_PKEY* authority_key);

// Returns `process` in the form that a URI of a certificate may have: other characters become '_'.
std::string UriName(absl::string_view process);

}  // namespace tandem::crypto

#endif  // TANDEM_BASE_CRYPTO_MAKE_CERTIFICATES_H_
