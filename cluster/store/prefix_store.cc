// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/prefix_store.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/store/limits.h"

namespace tandem::cluster {

PrefixStore::PrefixStore(Store* base, absl::string_view prefix)
    : ForwardingStore(base), prefix_(absl::StrCat(prefix, "/")) {}

absl::StatusOr<absl::string_view> PrefixStore::BaseKey(absl::string_view key, std::string* buffer) {
  TANDEM_RETURN_IF_ERROR(ValidateStoreKey(key));
  *buffer = absl::StrCat(prefix_, key);
  return *buffer;
}

absl::StatusOr<absl::Span<const std::string>> PrefixStore::BaseKeys(absl::Span<const std::string> keys,
                                                                    std::vector<std::string>* buffer) {
  buffer->resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) TANDEM_RETURN_IF_ERROR(BaseKey(keys[i], &(*buffer)[i]).status());
  return *buffer;
}

absl::StatusOr<std::vector<std::string>> PrefixStore::List(absl::string_view prefix) {
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> keys, base()->List(absl::StrCat(prefix_, prefix)));
  for (std::string& key : keys) key.erase(0, prefix_.size());
  return keys;
}

absl::StatusOr<int64_t> PrefixStore::NumKeys() {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> keys, base()->List(prefix_));
  return static_cast<int64_t>(keys.size());
}

}  // namespace tandem::cluster
