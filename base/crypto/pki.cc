// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/pki.h"

#include <ctime>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crypto/make_certificates.h"
#include "base/status.h"
#include "openssl/ec.h"
#include "openssl/err.h"
#include "openssl/pem.h"

namespace tandem::crypto {
namespace {

using OwnedStore = std::unique_ptr<X509_STORE, Free<X509_STORE_free>>;
using OwnedContext = std::unique_ptr<X509_STORE_CTX, Free<X509_STORE_CTX_free>>;
using OwnedNames = std::unique_ptr<GENERAL_NAMES, Free<GENERAL_NAMES_free>>;

absl::StatusOr<std::vector<OwnedCertificate>> Parse(absl::string_view pem, absl::string_view what) {
  const OwnedBio text = OpenText(pem);
  std::vector<OwnedCertificate> certificates;
  while (X509* const one = PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(one);
  }
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !at_end) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, certificates.empty() ? " has no certificate (PEM)" : " has a damaged certificate"));
  }
  return certificates;
}

std::string NameText(const X509_NAME* name) {
  const OwnedBio memory(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(memory.get(), name, 0, XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return absl::InfinitePast();
  return absl::FromTM(parts, absl::UTCTimeZone());
}

std::vector<std::string> NamesOf(X509* certificate) {
  std::vector<std::string> names;
  const OwnedNames found(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  for (int i = 0; found != nullptr && i < sk_GENERAL_NAME_num(found.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(found.get(), i);
    if (name->type != GEN_DNS && name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const text = name->d.ia5;
    names.push_back(absl::StrCat(name->type == GEN_DNS ? "DNS:" : "URI:",
                                 std::string(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
                                             static_cast<size_t>(ASN1_STRING_length(text)))));
  }
  return names;
}

}  // namespace

absl::StatusOr<std::vector<CertificateFacts>> ReadCertificates(absl::string_view pem) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<OwnedCertificate> certificates, Parse(pem, "the text"));
  std::vector<CertificateFacts> facts;
  for (const OwnedCertificate& one : certificates) {
    X509* const certificate = one.get();
    facts.push_back({.subject = NameText(X509_get_subject_name(certificate)),
                     .issuer = NameText(X509_get_issuer_name(certificate)),
                     .names = NamesOf(certificate),
                     .from = ToTime(X509_get0_notBefore(certificate)),
                     .until = ToTime(X509_get0_notAfter(certificate)),
                     .authority = X509_check_ca(certificate) >= 1,
                     .for_servers = X509_check_purpose(certificate, X509_PURPOSE_SSL_SERVER, 0) == 1,
                     .for_clients = X509_check_purpose(certificate, X509_PURPOSE_SSL_CLIENT, 0) == 1});
  }
  return facts;
}

absl::StatusOr<absl::Time> CheckCertificates(const Certificates& certificates, absl::Time now) {
  TANDEM_ASSIGN_OR_RETURN(const auto authorities, Parse(certificates.authority, "the authority"));
  TANDEM_ASSIGN_OR_RETURN(const auto chain, Parse(certificates.certificate, "the certificate"));
  const OwnedKey key(
      PEM_read_bio_PrivateKey(OpenText(certificates.private_key).get(), nullptr, nullptr, nullptr));
  X509* const own = chain[0].get();
  if (key == nullptr) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the private key cannot be read (PEM, without a password)");
  }
  if (X509_check_private_key(own, key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the private key is not that of the certificate");
  }
  const OwnedStore store(X509_STORE_new());
  for (const OwnedCertificate& authority : authorities) X509_STORE_add_cert(store.get(), authority.get());
  STACK_OF(X509)* const between = sk_X509_new_null();
  for (size_t i = 1; i < chain.size(); ++i) sk_X509_push(between, chain[i].get());
  for (const int purpose : {X509_PURPOSE_SSL_SERVER, X509_PURPOSE_SSL_CLIENT}) {
    const OwnedContext context(X509_STORE_CTX_new());
    X509_STORE_CTX_init(context.get(), store.get(), own, between);
    X509_STORE_CTX_set_purpose(context.get(), purpose);
    X509_STORE_CTX_set_time(context.get(), 0, absl::ToTimeT(now));
    if (X509_verify_cert(context.get()) == 1) continue;
    const std::string reason = X509_verify_cert_error_string(X509_STORE_CTX_get_error(context.get()));
    sk_X509_free(between);
    ERR_clear_error();
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate of ", NameText(X509_get_subject_name(own)), " cannot be a ",
                     purpose == X509_PURPOSE_SSL_SERVER ? "server's: " : "client's: ", reason));
  }
  sk_X509_free(between);
  if (X509_check_host(own, kCertificateHost, 0, 0, nullptr) != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the certificate of ", NameText(X509_get_subject_name(own)), " lacks the name (DNS) '",
                     kCertificateHost, "', which all processes of Tandem share"));
  }
  return ToTime(X509_get0_notAfter(own));
}

absl::StatusOr<Certificates> MakeCertificateAuthority(absl::string_view name, absl::Time until) {
  const OwnedKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  const OwnedCertificate authority = MakeAuthority(key.get(), name, Asn1Time(until));
  if (authority == nullptr) return OpenSslError("cannot make the authority's certificate");
  Certificates made;
  TANDEM_ASSIGN_OR_RETURN(made.authority, ToPem(authority.get()));
  made.certificate = made.authority;
  TANDEM_ASSIGN_OR_RETURN(made.private_key, ToPem(key.get()));
  return made;
}

absl::StatusOr<Certificates> IssueCertificate(const Certificates& authority, absl::string_view process,
                                              absl::Time until) {
  TANDEM_ASSIGN_OR_RETURN(const auto issuers, Parse(authority.authority, "the authority"));
  const OwnedKey issuer_key(
      PEM_read_bio_PrivateKey(OpenText(authority.private_key).get(), nullptr, nullptr, nullptr));
  if (issuer_key == nullptr || X509_check_private_key(issuers[0].get(), issuer_key.get()) != 1) {
    ERR_clear_error();
    return absl::InvalidArgumentError("the private key is not that of the authority");
  }
  const OwnedKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("cannot make a key");
  const OwnedCertificate leaf =
      MakeLeaf(key.get(),
               {.until = Asn1Time(until),
                .names = absl::StrCat("DNS:", kCertificateHost, ",URI:tandem://", UriName(process))},
               issuers[0].get(), issuer_key.get());
  if (leaf == nullptr) return OpenSslError("cannot make a certificate");
  Certificates made;
  made.authority = authority.authority;
  TANDEM_ASSIGN_OR_RETURN(made.certificate, ToPem(leaf.get()));
  TANDEM_ASSIGN_OR_RETURN(made.private_key, ToPem(key.get()));
  return made;
}

}  // namespace tandem::crypto
