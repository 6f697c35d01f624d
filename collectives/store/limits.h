#ifndef TANDEM_COLLECTIVES_STORE_LIMITS_H_
#define TANDEM_COLLECTIVES_STORE_LIMITS_H_

// What every store accepts, and the sentences in which every store refuses. Pure functions.

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"

namespace tandem::collectives {

inline constexpr size_t kMaxStoreKeyBytes = 4 << 10;
inline constexpr size_t kMaxStoreValueBytes = 64 << 20;
inline constexpr size_t kMaxStoreBatchBytes = 256 << 20;
inline constexpr size_t kMaxStoreWaitKeys = 64 << 10;

// InvalidArgument for an empty key or one longer than kMaxStoreKeyBytes.
absl::Status ValidateStoreKey(absl::string_view key);
// InvalidArgument for a value longer than kMaxStoreValueBytes.
absl::Status ValidateStoreValue(absl::string_view key, absl::string_view value);
absl::Status ValidateStoreSize(absl::string_view key, size_t value_bytes);
absl::Status ValidateStoreKeys(absl::Span<const std::string> keys);
// Of MultiSet.
absl::Status ValidateStoreEntries(absl::Span<const std::string> keys, absl::Span<const std::string> values);
// Of MultiGet: `bytes` is the size of all values.
absl::Status ValidateStoreBatch(size_t keys, size_t bytes);

// What Add makes of what the key holds. InvalidArgument if that is no number, or the sum none of 64 bits.
absl::StatusOr<int64_t> StoreSum(absl::string_view key, const absl::optional<absl::string_view>& held,
                                 int64_t delta);

// `timeout`, at least nothing and at most a year: what can be added to a time, and sent to a server.
absl::Duration BoundedWait(absl::Duration timeout);

// DeadlineExceeded: "key 'a' did not appear in the store within 5s". `missing` must not be empty; of many,
// some are named.
absl::Status KeysMissing(absl::Span<const std::string> missing, absl::Duration timeout);

// DeadlineExceeded: "nothing came into queue 'q' of the store within 5s".
absl::Status QueueEmpty(absl::string_view queue, absl::Duration timeout);

// A key as it is shown in messages: quoted, shortened, unprintable bytes escaped.
std::string QuoteKey(absl::string_view key);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_LIMITS_H_
