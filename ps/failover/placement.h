// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_FAILOVER_PLACEMENT_H_
#define TANDEM_PS_FAILOVER_PLACEMENT_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "tandem/v1/failover.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// One copy of a shard: v1.Replica as a plain value.
struct Copy {
  std::string id;
  std::string address;
  bool operator==(const Copy&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Copy& c) {
    return H::combine(std::move(h), c.id, c.address);
  }
};

// The placement document of a shard: v1.ShardPlacement as a plain value. Version 0: there is none.
struct ShardPlacement {
  uint64_t version = 0;
  uint64_t term = 0;
  Copy primary;
  std::vector<Copy> in_sync;
  uint64_t failovers = 0;
  uint64_t handovers = 0;
  bool operator==(const ShardPlacement&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const ShardPlacement& p) {
    return H::combine(std::move(h), p.version, p.term, p.primary, p.in_sync, p.failovers, p.handovers);
  }

  // Returns whether the copy `id` may take over.
  bool IsInSync(absl::string_view id) const {
    return std::any_of(in_sync.begin(), in_sync.end(), [&](const Copy& copy) { return copy.id == id; });
  }
};

ShardPlacement FromProto(const v1::ShardPlacement& placement);
v1::ShardPlacement ToProto(const ShardPlacement& placement);
Copy FromProto(const v1::Replica& replica);
v1::Replica ToProto(const Copy& copy);

}  // namespace tandem::ps

#endif  // TANDEM_PS_FAILOVER_PLACEMENT_H_
