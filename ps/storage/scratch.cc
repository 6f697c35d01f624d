// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/scratch.h"

#include <utility>

namespace tandem::ps {

size_t Scratch::bytes() const {
  return sizeof(Scratch) + grouping.bytes() + ids.capacity() * sizeof(ids[0]) +
         updates.capacity() * sizeof(updates[0]) + update_ids.capacity() * sizeof(update_ids[0]) +
         uses.capacity() * sizeof(uses[0]) + duplicates.capacity() * sizeof(duplicates[0]) +
         seen.capacity() * (sizeof(*seen.begin()) + 1) + merged_index.capacity() * sizeof(merged_index[0]) +
         merged_sums.capacity() * sizeof(merged_sums[0]) + weights.capacity() * sizeof(weights[0]) +
         absent.capacity() * sizeof(absent[0]) + over.capacity() * sizeof(over[0]) +
         cold_at.capacity() * sizeof(cold_at[0]) + cold_keys.capacity() * sizeof(cold_keys[0]) +
         cold_found.capacity() + cold_rows.capacity();
}

std::unique_ptr<Scratch> ScratchPool::Take() {
  absl::MutexLock lock(&mutex_);
  if (idle_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(idle_.back());
  idle_.pop_back();
  return scratch;
}

void ScratchPool::Release(std::unique_ptr<Scratch> scratch) {
  absl::MutexLock lock(&mutex_);
  idle_.push_back(std::move(scratch));
}

size_t ScratchPool::bytes() const {
  absl::MutexLock lock(&mutex_);
  size_t bytes = 0;
  for (const auto& scratch : idle_) bytes += scratch->bytes();
  return bytes;
}

}  // namespace tandem::ps
