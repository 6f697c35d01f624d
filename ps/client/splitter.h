// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_SPLITTER_H_
#define TANDEM_PS_CLIENT_SPLITTER_H_

// Splits the ids of a call over the servers that own them.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ps/shard_map.h"

namespace tandem::ps {

// The ids of one part that one server owns.
struct ServerIds {
  std::vector<uint64_t> ids;
  // ids[i] is at input position positions[i]. Ascending.
  std::vector<uint32_t> positions;
  // The bags of the part, as far as their ids are on this server. Empty without pooling.
  std::vector<uint32_t> offsets;
};

// Splits `ids` by owner and keeps their order. `offsets` (bags + 1 entries), if not empty, splits each bag:
// (*out)[s].offsets has as many entries. `out` gets one element per server; its memory is reused.
void SplitByServer(const ShardMap& map, absl::Span<const uint64_t> ids, absl::Span<const uint32_t> offsets,
                   std::vector<ServerIds>* out);

// Returns the ends of the segments among a server's ids, given their ends among all ids (PushPart::segments).
std::vector<uint32_t> SplitSegments(absl::Span<const uint32_t> ends, const ServerIds& server);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_SPLITTER_H_
