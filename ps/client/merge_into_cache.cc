#include "ps/client/merge_into_cache.h"

namespace tandem::ps {

void MergedPart::PutInto(PushPart* part) const {
  part->ids = gradients.ids;
  part->gradients = gradients.sums.data();
  part->pulled_versions = versions;
  // An id may occur twice: with a row that left the cache, and with a gradient that bypassed it.
  part->repeats = true;
}

void MergeIntoCache(RowCache& cache, float learning_rate_factor, PushPart* part, MergedPart* absorbed) {
  const float factor = learning_rate_factor * part->learning_rate_factor;
  const bool hold = cache.holds() && part->learning_rate_factor == 1.0f;
  cache.Merge(part->ids, part->gradients, factor, part->pulled_versions,
              hold ? &absorbed->gradients : nullptr);
  if (!hold) return;
  absorbed->versions = cache.Oldest(absorbed->gradients, part->pulled_versions);
  absorbed->PutInto(part);
}

MergedPart TakeDeferred(RowCache& cache) {
  MergedPart taken;
  if (!cache.holds()) return taken;
  std::vector<uint64_t> pulled;
  cache.TakeHeld(&taken.gradients, &pulled);
  taken.versions = cache.Oldest(taken.gradients, pulled);
  return taken;
}

}  // namespace tandem::ps
