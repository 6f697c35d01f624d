// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/certificates.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crypto/make_certificates.h"
#include "base/status.h"
#include "openssl/ec.h"

namespace tandem::crypto {
namespace {

constexpr char kAuthorityName[] = "Tandem job";

absl::StatusOr<Certificates> Issue(absl::string_view seed, const Leaf& what) {
  if (seed.size() != kCertificateSeedBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the secret of certificates has ", seed.size(),
                                                   " bytes; expected ", kCertificateSeedBytes));
  }
  const OwnedKey authority_key(EVP_PKEY_new_raw_private_key(
      EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()), seed.size()));
  if (authority_key == nullptr) return OpenSslError("cannot make the authority's key");
  const OwnedCertificate authority = MakeAuthority(authority_key.get(), kAuthorityName, kNever);
  if (authority == nullptr) return OpenSslError("cannot make the authority's certificate");
  const OwnedKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  const OwnedCertificate leaf = MakeLeaf(key.get(), what, authority.get(), authority_key.get());
  if (leaf == nullptr) return OpenSslError("cannot make a certificate");

  Certificates made;
  TANDEM_ASSIGN_OR_RETURN(made.authority, ToPem(authority.get()));
  TANDEM_ASSIGN_OR_RETURN(made.certificate, ToPem(leaf.get()));
  TANDEM_ASSIGN_OR_RETURN(made.private_key, ToPem(key.get()));
  return made;
}

}  // namespace

absl::StatusOr<Certificates> DeriveCertificates(absl::string_view seed, absl::string_view process) {
  return Issue(seed, {.names = absl::StrCat("DNS:", kCertificateHost, ",URI:tandem://", UriName(process))});
}

absl::StatusOr<Certificates> IssueClientCertificate(absl::string_view seed, absl::string_view process,
                                                    absl::Time expires) {
  return Issue(seed, {.until = Asn1Time(expires),
                      .usage = "clientAuth",
                      .names = absl::StrCat("URI:tandem://", UriName(process))});
}

}  // namespace tandem::crypto
