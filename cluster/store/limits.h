// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_LIMITS_H_
#define TANDEM_CLUSTER_STORE_LIMITS_H_

// The limits that every store enforces, and the error texts that all stores share. Pure functions.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace tandem::cluster {

inline constexpr size_t kMaxStoreKeyBytes = 4 << 10;
inline constexpr size_t kMaxStoreValueBytes = 64 << 20;
inline constexpr size_t kMaxStoreBatchBytes = 256 << 20;
inline constexpr size_t kMaxStoreWaitKeys = 64 << 10;

// The limits of a whole store. They bound the memory that its clients can make the serving process use. A
// call beyond one of them returns ResourceExhausted, which names the limit, and changes nothing.
struct StoreLimits {
  size_t keys = size_t{1} << 20;   // keys and queued items
  size_t bytes = size_t{1} << 30;  // of keys, values and queued items
  // The limits of a StoreService's deferred calls: Get, Wait, MultiGet and Pop, while what they wait for is
  // absent. Calls that need not wait are always served.
  size_t waits = size_t{1} << 16;
  size_t wait_bytes = size_t{1} << 30;  // of the keys that they name
};

// Returns InvalidArgument for an empty key or one longer than kMaxStoreKeyBytes.
absl::Status ValidateStoreKey(absl::string_view key);
// Returns InvalidArgument for a value longer than kMaxStoreValueBytes.
absl::Status ValidateStoreValue(absl::string_view key, absl::string_view value);
// Returns InvalidArgument for a value of more than kMaxStoreValueBytes bytes.
absl::Status ValidateStoreSize(absl::string_view key, size_t value_bytes);
// Returns InvalidArgument for more than kMaxStoreWaitKeys keys, or for an invalid key.
absl::Status ValidateStoreKeys(absl::Span<const std::string> keys);
// Checks the arguments of MultiSet: as many keys as values, and all limits above.
absl::Status ValidateStoreEntries(absl::Span<const std::string> keys, absl::Span<const std::string> values);
// Checks the size of a MultiGet or MultiSet: `bytes` is the size of all values, at most kMaxStoreBatchBytes.
absl::Status ValidateStoreBatch(size_t keys, size_t bytes);

// Returns ResourceExhausted if a store that would hold `keys` keys and items of `bytes` bytes after a write
// to `key` exceeds `limits`.
absl::Status ValidateStoreTotal(absl::string_view key, size_t keys, size_t bytes, const StoreLimits& limits);
// Returns ResourceExhausted if `waits` deferred calls that name `bytes` bytes of keys exceed `limits`.
absl::Status ValidateStoreWaits(size_t waits, size_t bytes, const StoreLimits& limits);

// Returns the result of Add for a key that holds `held`. InvalidArgument if that is no number, or if the sum
// does not fit 64 bits.
absl::StatusOr<int64_t> StoreSum(absl::string_view key, const absl::optional<absl::string_view>& held,
                                 int64_t delta);

// Clamps `timeout` to [0, one year], which can be added to a time and sent to a server.
absl::Duration BoundedWait(absl::Duration timeout);

// Returns DeadlineExceeded: "key 'a' did not appear in the store within 5s". `missing` must not be empty. If
// there are many keys, the message names only some.
absl::Status KeysMissing(absl::Span<const std::string> missing, absl::Duration timeout);

// Returns DeadlineExceeded: "nothing came into queue 'q' of the store within 5s".
absl::Status QueueEmpty(absl::string_view queue, absl::Duration timeout);

// Formats a key for messages: quoted, shortened, unprintable bytes escaped.
std::string QuoteKey(absl::string_view key);

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_LIMITS_H_
