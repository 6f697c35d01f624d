#ifndef TANDEM_COLLECTIVES_STORE_LIMITS_H_
#define TANDEM_COLLECTIVES_STORE_LIMITS_H_

// What every store accepts, and the sentences in which every store refuses. Pure functions.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::collectives {

inline constexpr size_t kMaxStoreKeyBytes = 4 << 10;
inline constexpr size_t kMaxStoreValueBytes = 64 << 20;
inline constexpr size_t kMaxStoreWaitKeys = 64 << 10;

// InvalidArgument for an empty key or one longer than kMaxStoreKeyBytes.
absl::Status ValidateStoreKey(absl::string_view key);
// InvalidArgument for a value longer than kMaxStoreValueBytes.
absl::Status ValidateStoreValue(absl::string_view key, absl::string_view value);
absl::Status ValidateStoreKeys(absl::Span<const std::string> keys);

// DeadlineExceeded: "key 'a' did not appear in the store within 5s". `missing` must not be empty; of many,
// some are named.
absl::Status KeysMissing(absl::Span<const std::string> missing, absl::Duration timeout);

// A key as it is shown in messages: quoted, shortened, unprintable bytes escaped.
std::string QuoteKey(absl::string_view key);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_STORE_LIMITS_H_
