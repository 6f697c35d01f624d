// SPDX-License-Identifier: Apache-2.0
#include "ps/dedupe.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "absl/numeric/bits.h"
#include "base/random.h"

namespace tandem::ps {

size_t Deduper::Begin(size_t ids) {
  // There are twice as many cells as ids: linear probes stay short even if every id is distinct.
  const size_t needed = absl::bit_ceil(std::max<size_t>(64, 2 * ids));
  if (generation_ == ~uint32_t{0}) {
    cells_.clear();
    generation_ = 0;
  }
  if (cells_.size() < needed) cells_.assign(needed, Cell{0, 0, 0});
  ++generation_;
  // Uses only as many cells as this call needs, so that a small call after a large one stays in the L1 cache.
  return needed - 1;
}

bool Deduper::SampleRepeats(absl::Span<const uint64_t> ids) {
  if (ids.size() < kMinToSample) return true;
  const size_t sampled = 4 * static_cast<size_t>(std::sqrt(static_cast<double>(ids.size())));
  const size_t mask = Begin(sampled);
  for (size_t i = 0; i < sampled; ++i) {
    const uint64_t id = ids[i * ids.size() / sampled];
    size_t at = Mix64(id) & mask;
    for (; cells_[at].generation == generation_; at = (at + 1) & mask) {
      if (cells_[at].id == id) return true;
    }
    cells_[at] = Cell{id, 0, generation_};
  }
  return false;
}

void Deduper::Run(absl::Span<const uint64_t> ids, std::vector<uint64_t>* unique,
                  std::vector<uint32_t>* index) {
  const size_t mask = Begin(ids.size());
  unique->clear();
  index->resize(ids.size());
  constexpr size_t kAhead = 16;  // cells are prefetched this many ids before they are probed
  uint32_t* out = index->data();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) __builtin_prefetch(&cells_[Mix64(ids[i + kAhead]) & mask]);
    const uint64_t id = ids[i];
    for (size_t at = Mix64(id) & mask;; at = (at + 1) & mask) {
      Cell& cell = cells_[at];
      if (cell.generation != generation_) {
        cell = Cell{id, static_cast<uint32_t>(unique->size()), generation_};
        out[i] = cell.index;
        unique->push_back(id);
        break;
      }
      if (cell.id == id) {
        out[i] = cell.index;
        break;
      }
    }
  }
}

}  // namespace tandem::ps
