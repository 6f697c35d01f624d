// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/make_certificates.h"

#include <cctype>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "openssl/asn1.h"
#include "openssl/ec.h"
#include "openssl/err.h"
#include "openssl/pem.h"
#include "openssl/rand.h"

namespace tandem::crypto {

absl::Status OpenSslError(absl::string_view what) {
  char text[256] = "no reason given";
  if (const unsigned long error = ERR_get_error(); error != 0) ERR_error_string_n(error, text, sizeof(text));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat(what, ": OpenSSL: ", text));
}

namespace {

// Writes an object as PEM with `write`, a function of openssl/pem.h.
template <typename Write>
absl::StatusOr<std::string> WritePem(Write write) {
  const OwnedBio memory(BIO_new(BIO_s_mem()));
  if (memory == nullptr || write(memory.get()) != 1) return OpenSslError("cannot write a certificate");
  char* data = nullptr;
  const long size = BIO_get_mem_data(memory.get(), &data);
  return std::string(data, static_cast<size_t>(size));
}

bool AddExtension(X509* certificate, X509* issuer, int kind, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const OwnedExtension extension(X509V3_EXT_conf_nid(nullptr, &context, kind, value.c_str()));
  return extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1;
}

bool SetName(X509_NAME* name, absl::string_view common_name) {
  return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(common_name.data()),
                                    static_cast<int>(common_name.size()), -1, 0) == 1;
}

// Returns an unsigned certificate of `key` with all fields but the extensions.
OwnedCertificate NewCertificate(EVP_PKEY* key, uint64_t serial, absl::string_view name,
                                const std::string& until) {
  OwnedCertificate certificate(X509_new());
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial) != 1 ||
      ASN1_TIME_set_string(X509_getm_notBefore(certificate.get()), "20000101000000Z") != 1 ||
      ASN1_TIME_set_string(X509_getm_notAfter(certificate.get()), until.c_str()) != 1 ||
      !SetName(X509_get_subject_name(certificate.get()), name) ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return nullptr;
  }
  return certificate;
}

}  // namespace

absl::StatusOr<std::string> ToPem(X509* certificate) {
  return WritePem([&](BIO* out) { return PEM_write_bio_X509(out, certificate); });
}

absl::StatusOr<std::string> ToPem(EVP_PKEY* private_key) {
  return WritePem([&](BIO* out) {
    return PEM_write_bio_PrivateKey(out, private_key, nullptr, nullptr, 0, nullptr, nullptr);
  });
}

OwnedBio OpenText(absl::string_view text) {
  return OwnedBio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::string Asn1Time(absl::Time time) { return absl::FormatTime("%Y%m%d%H%M%SZ", time, absl::UTCTimeZone()); }

OwnedCertificate MakeAuthority(EVP_PKEY* key, absl::string_view name, const std::string& until) {
  OwnedCertificate authority = NewCertificate(key, 1, name, until);
  if (authority == nullptr || !SetName(X509_get_issuer_name(authority.get()), name) ||
      !AddExtension(authority.get(), authority.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(authority.get(), authority.get(), NID_key_usage, "critical,keyCertSign") ||
      !AddExtension(authority.get(), authority.get(), NID_subject_key_identifier, "hash") ||
      X509_sign(authority.get(), key, nullptr) == 0) {
    return nullptr;
  }
  return authority;
}

// Returns `process` in the form that a URI of an extension may have: other characters become '_'.
std::string UriName(absl::string_view process) {
  std::string name(process);
  for (char& c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '/' && c != '-' && c != '.') c = '_';
  }
  return name;
}

OwnedCertificate MakeLeaf(EVP_PKEY* key, const Leaf& what, X509* authority, EVP_PKEY* authority_key) {
  uint64_t serial = 0;
  unsigned char id[8];
  if (RAND_bytes(id, sizeof(id)) != 1) return nullptr;
  for (const unsigned char byte : id) serial = serial << 8 | byte;
  OwnedCertificate leaf = NewCertificate(key, serial >> 1, "Tandem process", what.until);
  if (leaf == nullptr || X509_set_issuer_name(leaf.get(), X509_get_subject_name(authority)) != 1 ||
      !AddExtension(leaf.get(), authority, NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(leaf.get(), authority, NID_key_usage, "critical,digitalSignature") ||
      !AddExtension(leaf.get(), authority, NID_ext_key_usage, what.usage) ||
      !AddExtension(leaf.get(), authority, NID_authority_key_identifier, "keyid") ||
      !AddExtension(leaf.get(), authority, NID_subject_alt_name, what.names) ||
      X509_sign(leaf.get(), authority_key, nullptr) == 0) {
    return nullptr;
  }
  return leaf;
}

}  // namespace tandem::crypto
