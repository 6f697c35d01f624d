// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRYPTO_OPENSSL_H_
#define TANDEM_BASE_CRYPTO_OPENSSL_H_

// Owners of OpenSSL's objects. Only used in base/crypto.

#include <memory>

#include "openssl/bio.h"
#include "openssl/evp.h"
#include "openssl/x509.h"
#include "openssl/x509v3.h"

namespace tandem::crypto {

template <auto free>
struct Free {
  template <typename T>
  void operator()(T* object) const {
    free(object);
  }
};
using OwnedKey = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using OwnedCertificate = std::unique_ptr<X509, Free<X509_free>>;
using OwnedExtension = std::unique_ptr<X509_EXTENSION, Free<X509_EXTENSION_free>>;
using OwnedBio = std::unique_ptr<BIO, Free<BIO_free>>;

}  // namespace tandem::crypto

#endif  // TANDEM_BASE_CRYPTO_OPENSSL_H_
