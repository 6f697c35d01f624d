// SPDX-License-Identifier: Apache-2.0
#include "base/crypto/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::crypto {
namespace {

const unsigned char* Data(absl::string_view bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

}  // namespace

std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  TANDEM_CHECK(RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) == 1);
  return bytes;
}

std::string HmacSha256(absl::string_view key, absl::string_view message) {
  std::string digest(kSha256Bytes, '\0');
  // A null pointer would mean the key of the call before.
  const absl::string_view present = key.empty() ? absl::string_view("", 0) : key;
  TANDEM_CHECK(HMAC(EVP_sha256(), present.data(), static_cast<int>(present.size()), Data(message),
                    message.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) != nullptr);
  return digest;
}

std::string HkdfSha256(absl::string_view secret, absl::string_view salt, absl::string_view info,
                       size_t size) {
  TANDEM_CHECK(size <= kMaxHkdfBytes);
  const std::string extracted = HmacSha256(salt, secret);
  std::string derived, block;
  for (char counter = 1; derived.size() < size; ++counter) {
    block = HmacSha256(extracted, absl::StrCat(block, info, absl::string_view(&counter, 1)));
    derived += block;
  }
  derived.resize(size);
  return derived;
}

bool SecretsEqual(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tandem::crypto
