// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_CRYPTO_CRYPTO_H_
#define TANDEM_BASE_CRYPTO_CRYPTO_H_

// Secrets: random bytes, keyed hashes, derived keys and their comparison. The functions call OpenSSL and are
// thread-safe. Strings hold raw bytes.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::crypto {

inline constexpr size_t kSha256Bytes = 32;
// Most bytes that HkdfSha256 derives at once (RFC 5869).
inline constexpr size_t kMaxHkdfBytes = 255 * kSha256Bytes;

// Returns `size` bytes of the kernel's random number generator. No result is good enough for a secret if the
// generator fails, so the process ends then.
std::string RandomBytes(size_t size);

// Returns HMAC-SHA256 of `message`, kSha256Bytes (RFC 2104).
std::string HmacSha256(absl::string_view key, absl::string_view message);

// Returns `size` bytes derived from `secret`; `info` says what they are for (RFC 5869). Requires `size` of at
// most kMaxHkdfBytes.
std::string HkdfSha256(absl::string_view secret, absl::string_view salt, absl::string_view info, size_t size);

// Compares two secrets in a time that depends on their sizes only.
bool SecretsEqual(absl::string_view a, absl::string_view b);

}  // namespace tandem::crypto

#endif  // TANDEM_BASE_CRYPTO_CRYPTO_H_
