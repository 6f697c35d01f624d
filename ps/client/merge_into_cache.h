// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_MERGE_INTO_CACHE_H_
#define TANDEM_PS_CLIENT_MERGE_INTO_CACHE_H_

// Merges the gradients of a push into a cache, which may defer them.

#include <cstdint>
#include <vector>

#include "ps/client/cache/row_cache.h"
#include "ps/client/parts.h"

namespace tandem::ps {

// The gradients that a part sends after the merge.
struct MergedPart {
  DeferredGradients gradients;
  // [servers]: the oldest versions from which they were computed; empty: unknown.
  std::vector<uint64_t> versions;
  // Makes `part` refer to these gradients.
  void PutInto(PushPart* part) const;
};

// Merges the gradients of an unpooled part into the cache: copies move with them, and the cache may defer
// them. `part` then holds the gradients that must be sent now. It refers to `merged`, which must outlive it,
// if they differ from those that it held. Gradients of parts with their own learning rate factor are not
// deferred, because a later push could have another factor.
void MergeIntoCache(RowCache& cache, float learning_rate_factor, PushPart* part, MergedPart* merged);

// Takes all gradients that the cache has deferred.
MergedPart TakeDeferred(RowCache& cache);

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_MERGE_INTO_CACHE_H_
