#ifndef TANDEM_PS_CLIENT_MERGE_INTO_CACHE_H_
#define TANDEM_PS_CLIENT_MERGE_INTO_CACHE_H_

// A push's gradients on their way past a cache.

#include <cstdint>
#include <vector>

#include "ps/client/cache/row_cache.h"
#include "ps/client/parts.h"

namespace tandem::ps {

// What a part's gradients have become.
struct MergedPart {
  DeferredGradients gradients;
  std::vector<uint64_t> versions;  // [servers]: the oldest that they were computed from; empty: unknown
  // Makes the part one of these gradients, which it refers to.
  void PutInto(PushPart* part) const;
};

// Copies follow the gradients of an unpooled part, and perhaps hold them back; the part is then what is to be
// sent, and refers to `absorbed` where that is something else. Slices with a learning rate factor of their
// own are not held back: what they would be sent with later could have another.
void MergeIntoCache(RowCache& cache, float learning_rate_factor, PushPart* part, MergedPart* absorbed);

// All that the cache holds back.
MergedPart TakeDeferred(RowCache& cache);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_MERGE_INTO_CACHE_H_
