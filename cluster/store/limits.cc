// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/limits.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tandem::cluster {

std::string QuoteKey(absl::string_view key) {
  constexpr size_t kShown = 120;
  if (key.size() <= kShown) return absl::StrCat("'", absl::Utf8SafeCHexEscape(key), "'");
  return absl::StrCat("'", absl::Utf8SafeCHexEscape(key.substr(0, kShown)), "...' (", key.size(), " bytes)");
}

absl::Status ValidateStoreKey(absl::string_view key) {
  if (key.empty()) return absl::InvalidArgumentError("a store key must not be empty");
  if (key.size() > kMaxStoreKeyBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "store key ", QuoteKey(key), " is longer than the limit of ", kMaxStoreKeyBytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStoreSize(absl::string_view key, size_t value_bytes) {
  if (value_bytes > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the value for store key ", QuoteKey(key), " has ",
                                                   value_bytes, " bytes; the limit is ",
                                                   kMaxStoreValueBytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateStoreValue(absl::string_view key, absl::string_view value) {
  return ValidateStoreSize(key, value.size());
}

absl::Status ValidateStoreKeys(absl::Span<const std::string> keys) {
  if (keys.size() > kMaxStoreWaitKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("waiting for ", keys.size(), " store keys at once; the limit is ", kMaxStoreWaitKeys));
  }
  for (const std::string& key : keys) TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  return absl::OkStatus();
}

absl::Status ValidateStoreBatch(size_t keys, size_t bytes) {
  if (bytes > kMaxStoreBatchBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the values of ", keys, " store keys have ", bytes,
                                                   " bytes together; the limit of one call is ",
                                                   kMaxStoreBatchBytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateStoreEntries(absl::Span<const std::string> keys, absl::Span<const std::string> values) {
  if (keys.size() != values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("setting ", keys.size(), " store keys to ", values.size(), " values"));
  }
  TANDEM_RETURN_IF_ERROR(ValidateStoreKeys(keys));
  size_t bytes = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(ValidateStoreValue(keys[i], values[i]));
    bytes += values[i].size();
  }
  return ValidateStoreBatch(keys.size(), bytes);
}

absl::Status ValidateStoreTotal(absl::string_view key, size_t keys, size_t bytes, const StoreLimits& limits) {
  if (keys > limits.keys) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no space for ", QuoteKey(key), ": the store may hold ", limits.keys,
        " keys and queued items (--max-keys of tandem store); delete what is not needed any more"));
  }
  if (bytes > limits.bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("no space for ", QuoteKey(key), ": the store would hold ", bytes, " bytes and may hold ",
                     limits.bytes, " (--max-bytes of tandem store); delete what is not needed any more"));
  }
  return absl::OkStatus();
}

absl::Status ValidateStoreWaits(size_t waits, size_t bytes, const StoreLimits& limits) {
  if (waits > limits.waits) {
    return absl::ResourceExhaustedError(absl::StrCat(limits.waits,
                                                     " calls wait in the store already, which is its limit "
                                                     "(--max-waits of tandem store); try again later"));
  }
  if (bytes > limits.wait_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat("the keys for which calls wait in the store would have ",
                                                     bytes, " bytes; the limit is ", limits.wait_bytes,
                                                     "; wait for fewer keys at once"));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> StoreSum(absl::string_view key, const absl::optional<absl::string_view>& held,
                                 int64_t delta) {
  int64_t sum = 0;
  if (held && !absl::SimpleAtoi(*held, &sum)) {
    return absl::InvalidArgumentError(absl::StrCat("store key ", QuoteKey(key), " holds ", QuoteKey(*held),
                                                   ", which is no number to add to"));
  }
  if (__builtin_add_overflow(sum, delta, &sum)) {
    return absl::InvalidArgumentError(absl::StrCat("adding ", delta, " to store key ", QuoteKey(key),
                                                   " leaves the range of 64-bit integers"));
  }
  return sum;
}

absl::Duration BoundedWait(absl::Duration timeout) {
  return std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365));
}

absl::Status QueueEmpty(absl::string_view queue, absl::Duration timeout) {
  return absl::DeadlineExceededError(absl::StrCat("nothing came into queue ", QuoteKey(queue),
                                                  " of the store within ", absl::FormatDuration(timeout)));
}

absl::Status KeysMissing(absl::Span<const std::string> missing, absl::Duration timeout) {
  const std::string within =
      absl::StrCat(" did not appear in the store within ", absl::FormatDuration(timeout));
  if (missing.size() == 1)
    return absl::DeadlineExceededError(absl::StrCat("key ", QuoteKey(missing[0]), within));
  constexpr size_t kNamed = 8;
  const auto named = missing.subspan(0, std::min(kNamed, missing.size()));
  return absl::DeadlineExceededError(absl::StrCat(
      missing.size(), " keys", within, ": ",
      absl::StrJoin(named, ", ", [](std::string* out, const std::string& key) { *out += QuoteKey(key); }),
      missing.size() > kNamed ? ", ..." : ""));
}

}  // namespace tandem::cluster
