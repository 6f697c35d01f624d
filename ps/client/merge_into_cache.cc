// SPDX-License-Identifier: Apache-2.0
#include "ps/client/merge_into_cache.h"

namespace tandem::ps {

void MergedPart::PutInto(PushPart* part) const {
  part->ids = gradients.ids;
  part->gradients = gradients.sums.data();
  part->pulled_versions = versions;
  part->occurrences = gradients.occurrences;
  // An id may occur twice: with a row that left the cache, and with a gradient that bypassed it.
  part->repeats = true;
  part->segments = {};
}

void MergeIntoCache(RowCache& cache, float learning_rate_factor, PushPart* part, MergedPart* merged) {
  const float factor = learning_rate_factor * part->learning_rate_factor;
  const bool hold = cache.defers() && part->learning_rate_factor == 1.0f;
  cache.Merge(part->ids, part->gradients, factor, part->pulled_versions, hold ? &merged->gradients : nullptr,
              part->occurrences);
  if (!hold) return;
  merged->versions = cache.Oldest(merged->gradients, part->pulled_versions);
  merged->PutInto(part);
}

MergedPart TakeDeferred(RowCache& cache) {
  MergedPart taken;
  if (!cache.defers()) return taken;
  std::vector<uint64_t> pulled;
  cache.TakeDeferred(&taken.gradients, &pulled);
  taken.versions = cache.Oldest(taken.gradients, pulled);
  return taken;
}

}  // namespace tandem::ps
