#ifndef TANDEM_PS_CLIENT_SPLITTER_H_
#define TANDEM_PS_CLIENT_SPLITTER_H_

// Which server gets which of a call's ids, and where their rows go back to.

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "ps/shard_map.h"

namespace tandem::ps {

// The ids of one part as one server sees them.
struct ServerIds {
  std::vector<uint64_t> ids;
  std::vector<uint32_t> positions;  // ids[i] stands at input position positions[i]; ascending
  std::vector<uint32_t>
      offsets;  // bags of the part, as far as they lie on this server; empty without pooling
};

// Deals `ids` out by owner, in order. With `offsets` (bags + 1 entries) also cuts each bag: (*out)[s].offsets
// has as many entries. `out` gets one element per server; its memory is reused.
void SplitByServer(const ShardMap& map, absl::Span<const uint64_t> ids, absl::Span<const uint32_t> offsets,
                   std::vector<ServerIds>* out);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_SPLITTER_H_
