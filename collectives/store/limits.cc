#include "collectives/store/limits.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace tandem::collectives {

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

absl::Status ValidateStoreValue(absl::string_view key, absl::string_view value) {
  if (value.size() > kMaxStoreValueBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the value for store key ", QuoteKey(key), " has ",
                                                   value.size(), " bytes; the limit is ",
                                                   kMaxStoreValueBytes));
  }
  return absl::OkStatus();
}

absl::Status ValidateStoreKeys(absl::Span<const std::string> keys) {
  if (keys.size() > kMaxStoreWaitKeys) {
    return absl::InvalidArgumentError(
        absl::StrCat("waiting for ", keys.size(), " store keys at once; the limit is ", kMaxStoreWaitKeys));
  }
  for (const std::string& key : keys) TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  return absl::OkStatus();
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

}  // namespace tandem::collectives
