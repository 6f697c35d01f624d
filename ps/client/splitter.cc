// SPDX-License-Identifier: Apache-2.0
#include "ps/client/splitter.h"

#include <algorithm>

namespace tandem::ps {

void SplitByServer(const ShardMap& map, absl::Span<const uint64_t> ids, absl::Span<const uint32_t> offsets,
                   std::vector<ServerIds>* out) {
  out->resize(map.num_servers());
  for (ServerIds& server : *out) {
    server.ids.clear();
    server.positions.clear();
    server.offsets.clear();
  }
  const uint32_t* owners = map.owners().data();
  const uint32_t num_buckets = map.num_buckets();
  auto deal = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      ServerIds& server = (*out)[owners[BucketOf(ids[i], num_buckets)]];
      server.ids.push_back(ids[i]);
      server.positions.push_back(static_cast<uint32_t>(i));
    }
  };
  if (offsets.empty()) {
    deal(0, ids.size());
    return;
  }
  auto close_bags = [&] {
    for (ServerIds& server : *out) server.offsets.push_back(static_cast<uint32_t>(server.ids.size()));
  };
  close_bags();
  for (size_t bag = 0; bag + 1 < offsets.size(); ++bag) {
    deal(offsets[bag], offsets[bag + 1]);
    close_bags();
  }
}

std::vector<uint32_t> SplitSegments(absl::Span<const uint32_t> ends, const ServerIds& server) {
  std::vector<uint32_t> own;
  own.reserve(ends.size());
  auto at = server.positions.begin();
  for (const uint32_t end : ends) {
    at = std::lower_bound(at, server.positions.end(), end);
    own.push_back(static_cast<uint32_t>(at - server.positions.begin()));
  }
  return own;
}

}  // namespace tandem::ps
