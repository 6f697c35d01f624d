// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/store.h"

#include <utility>

#include "base/status.h"

namespace tandem::cluster {

absl::StatusOr<std::string> Store::GetIfPresent(absl::string_view key, absl::Duration /*timeout*/) {
  const std::string name(key);
  TANDEM_ASSIGN_OR_RETURN(const bool present, Check({&name, 1}));
  if (!present) return std::string();
  // The key may be deleted meanwhile; it is not waited for.
  absl::StatusOr<std::string> value = Get(key, absl::ZeroDuration());
  return absl::IsDeadlineExceeded(value.status()) ? std::string() : std::move(value);
}

}  // namespace tandem::cluster
