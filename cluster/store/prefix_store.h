// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_CLUSTER_STORE_PREFIX_STORE_H_
#define TANDEM_CLUSTER_STORE_PREFIX_STORE_H_

// A view of another store: key `k` here is that store's key "<prefix>/k".

#include <string>
#include <vector>

#include "cluster/store/forwarding_store.h"

namespace tandem::cluster {

// Thread-safe. `base` is borrowed and must outlive this object. Errors name keys as `base` knows them, prefix
// included. The prefix counts towards the limit of a key's length.
class PrefixStore final : public ForwardingStore {
 public:
  PrefixStore(Store* base, absl::string_view prefix);

  // Returns keys without the prefix.
  absl::StatusOr<std::vector<std::string>> List(absl::string_view prefix) override;
  absl::StatusOr<int64_t> NumKeys() override;  // of this view; costs a List

 protected:
  // "<prefix>/<key>". An empty key is InvalidArgument.
  absl::StatusOr<absl::string_view> BaseKey(absl::string_view key, std::string* buffer) override;
  absl::StatusOr<absl::Span<const std::string>> BaseKeys(absl::Span<const std::string> keys,
                                                         std::vector<std::string>* buffer) override;

 private:
  const std::string prefix_;  // with its trailing slash
};

}  // namespace tandem::cluster

#endif  // TANDEM_CLUSTER_STORE_PREFIX_STORE_H_
