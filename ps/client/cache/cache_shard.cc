// SPDX-License-Identifier: Apache-2.0
#include "ps/client/cache/cache_shard.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

// The number of random copies, the least used of which is evicted.
constexpr int kVictimCandidates = 8;
// The weight of earlier moves of a row at each new copy.
constexpr float kOldWeight = 0.5f;
// The largest move of a copy, as a multiple of the distance between consecutive copies.
constexpr float kMaxMove = 2.0f;
constexpr size_t kHugePage = size_t{2} << 20;
// The uses in an epoch that a row of a cache for reading needs to replace another.
constexpr uint16_t kMinUsesToRead = 2;

size_t StrideOf(uint32_t dim, CacheLayout layout) {
  const size_t floats = layout == CacheLayout::kPlain     ? size_t{dim}
                        : layout == CacheLayout::kFollows ? 2 * size_t{dim}
                                                          : 3 * size_t{dim} + 2;
  const size_t bytes = sizeof(CacheHeader) + floats * sizeof(float);
  return (bytes + alignof(CacheHeader) - 1) / alignof(CacheHeader) * alignof(CacheHeader);
}
size_t CellsOf(size_t rows) { return std::bit_ceil(rows + rows / 3 + 1); }
size_t SketchOf(size_t rows) { return std::bit_ceil(2 * rows); }

}  // namespace

void DeferredGradients::Append(const DeferredGradients& other) {
  ids.insert(ids.end(), other.ids.begin(), other.ids.end());
  versions.insert(versions.end(), other.versions.begin(), other.versions.end());
  occurrences.insert(occurrences.end(), other.occurrences.begin(), other.occurrences.end());
  sums.insert(sums.end(), other.sums.begin(), other.sums.end());
}

void DeferredGradients::Clear() {
  ids.clear();
  versions.clear();
  occurrences.clear();
  sums.clear();
}

uint32_t CacheShard::CapacityOf(size_t bytes, uint32_t dim, CacheLayout layout) {
  const auto needs = [&](size_t rows) {
    return rows * StrideOf(dim, layout) + CellsOf(rows) * sizeof(uint64_t) + SketchOf(rows);
  };
  size_t fits = 0, too_many = std::min<size_t>(bytes / StrideOf(dim, layout) + 1, size_t{1} << 30);
  while (too_many - fits > 1) {
    const size_t middle = fits + (too_many - fits) / 2;
    (needs(middle) <= bytes ? fits : too_many) = middle;
  }
  return static_cast<uint32_t>(fits);
}

void CacheShard::Init(size_t bytes, uint32_t dim, CacheLayout layout) {
  dim_ = dim;
  defers_ = layout == CacheLayout::kDefers;
  min_uses_ = layout == CacheLayout::kPlain ? kMinUsesToRead : 1;
  stride_ = StrideOf(dim, layout);
  capacity_ = CapacityOf(bytes, dim, layout);
  TANDEM_CHECK(capacity_ > 0);
  cells_.assign(CellsOf(capacity_), 0);
  mask_ = static_cast<uint32_t>(cells_.size() - 1);
  sketch_.assign(SketchOf(capacity_), 0);
  const size_t slab = (capacity_ * stride_ + kHugePage - 1) / kHugePage * kHugePage;
  // A slab that would fill most of a huge page gets one: budgets are often powers of two, of which the index
  // takes a part.
  const bool huge = capacity_ * stride_ >= kHugePage / 8 * 7;
  // The system allocates pages when they are first written.
  slab_.reset(
      static_cast<char*>(huge ? std::aligned_alloc(kHugePage, slab) : std::malloc(capacity_ * stride_)));
  TANDEM_CHECK(slab_ != nullptr);
  if (huge) ::madvise(slab_.get(), slab, MADV_HUGEPAGE);  // fewer TLB misses, if the system supports it
}

size_t CacheShard::bytes() const {
  return size_t{used_} * stride_ + cells_.size() * sizeof(uint64_t) + sketch_.size();
}

uint16_t CacheShard::CountInSketch(uint64_t hash, uint16_t epoch) {
  if (sketch_epoch_ != epoch) {
    for (uint8_t& uses : sketch_) uses = static_cast<uint8_t>(Halved(uses, sketch_epoch_, epoch));
    sketch_epoch_ = epoch;
  }
  const auto [first, second] = SketchCells(hash);
  uint8_t& a = sketch_[first];
  uint8_t& b = sketch_[second];
  const uint8_t least = std::min(a, b);
  // Increments only the smaller counter, which has the smaller error (conservative update).
  if (least < kMaxUses) {
    const bool both = a == b;
    if (both || a == least) ++a;
    if (&a != &b && (both || b == least)) ++b;
  }
  return std::min(a, b);
}

void CacheShard::RaiseInSketch(uint64_t hash, uint16_t uses) {
  const auto [first, second] = SketchCells(hash);
  uint8_t& a = sketch_[first];
  uint8_t& b = sketch_[second];
  const uint8_t value = static_cast<uint8_t>(std::min(uses, kMaxUses));
  a = std::max(a, value);
  b = std::max(b, value);
}

uint32_t CacheShard::DrawSlot(uint64_t* state) const {
  *state = *state * 6364136223846793005ull + 1442695040888963407ull;  // Knuth's MMIX
  return static_cast<uint32_t>(((*state >> 32) * capacity_) >> 32);
}

uint32_t CacheShard::DrawVictim(uint16_t epoch) {
  uint32_t victim = 0;
  uint32_t fewest = ~uint32_t{0};
  for (int i = 0; i < kVictimCandidates; ++i) {
    const uint32_t slot = DrawSlot(&random_);
    const CacheHeader* const record = RecordAt(slot);
    const uint32_t uses = Halved(record->uses, record->epoch, epoch);
    if (uses < fewest) {
      fewest = uses;
      victim = slot;
    }
  }
  uint64_t next = random_;
  for (int i = 0; i < kVictimCandidates; ++i) __builtin_prefetch(RecordAt(DrawSlot(&next)), 0, 2);
  return victim;
}

CacheHeader* CacheShard::Insert(uint64_t id, uint64_t hash, uint16_t epoch, DeferredGradients* to_send) {
  const uint16_t uses = CountInSketch(hash, epoch);
  uint32_t slot;
  if (!free_.empty()) {
    slot = free_.back();
    free_.pop_back();
  } else if (used_ < capacity_) {
    slot = used_++;
  } else if (uses < min_uses_) {
    ++refused_;
    return nullptr;
  } else {
    slot = DrawVictim(epoch);
    const CacheHeader* const victim = RecordAt(slot);
    const uint16_t victims = Halved(victim->uses, victim->epoch, epoch);
    if (uses <= victims) {
      ++refused_;
      return nullptr;
    }
    RaiseInSketch(Mix64(victim->id), victims);
    Erase(slot, to_send);
    ++evicted_;
  }
  uint32_t at = static_cast<uint32_t>(hash) & mask_;
  while (cells_[at] != 0) at = (at + 1) & mask_;
  cells_[at] = hash << 32 | (slot + 1);
  ++rows_;
  CacheHeader* const record = RecordAt(slot);
  *record = {};
  record->id = id;
  record->uses = uses;
  record->epoch = epoch;
  return record;
}

void CacheShard::Erase(uint32_t slot, DeferredGradients* to_send) {
  CacheHeader* const record = RecordAt(slot);
  if (record->deferred > 0) TakeDeferred(record, to_send);
  uint32_t hole = static_cast<uint32_t>(Mix64(record->id)) & mask_;
  while (static_cast<uint32_t>(cells_[hole]) != slot + 1) hole = (hole + 1) & mask_;
  // Cells after the hole move up unless that would put them before their home cell.
  for (uint32_t at = (hole + 1) & mask_; cells_[at] != 0; at = (at + 1) & mask_) {
    const uint32_t home = static_cast<uint32_t>(cells_[at] >> 32) & mask_;
    if (((at - home) & mask_) < ((at - hole) & mask_)) continue;
    cells_[hole] = cells_[at];
    hole = at;
  }
  cells_[hole] = 0;
  record->version = 0;
  --rows_;
}

void CacheShard::SetStep(CacheHeader* record, float squares) const {
  record->step = record->fit.change_times_gradient > 0 && record->fit.gradient_squared > 0
                     ? record->fit.change_times_gradient / record->fit.gradient_squared
                     : 0;
  const float most = kMaxMove * record->moved;
  // The negation also catches a step that is NaN.
  if (!(record->step * record->step * squares <= most * most)) {
    record->step = squares > 0 ? most / std::sqrt(squares) : 0;
  }
}

void CacheShard::Replace(CacheHeader* record, const float* row) const {
  float* const copy = Row(record);
  float* const since = Since(record);
  const float* const deferred = record->deferred > 0 ? DeferredSums(record) : nullptr;
  if (record->arrived > 0) {
    float change_times_gradient = 0, gradient_squared = 0, moved = 0;
    for (uint32_t d = 0; d < dim_; ++d) {
      const float change = copy[d] - row[d];
      const float pushed = since[d] - (deferred != nullptr ? deferred[d] : 0);
      change_times_gradient += change * pushed;
      gradient_squared += pushed * pushed;
      moved += change * change;
    }
    record->fit.change_times_gradient =
        kOldWeight * record->fit.change_times_gradient + change_times_gradient;
    record->fit.gradient_squared = kOldWeight * record->fit.gradient_squared + gradient_squared;
    record->moved = std::max(kOldWeight * record->moved, std::sqrt(moved));
  }
  std::copy_n(row, dim_, copy);
  float squares = 0;
  for (uint32_t d = 0; d < dim_; ++d) {
    since[d] = deferred != nullptr ? deferred[d] : 0;
    squares += since[d] * since[d];
  }
  SetStep(record, squares);
  record->served = 0;
  if (record->arrived < std::numeric_limits<uint16_t>::max()) ++record->arrived;
}

void CacheShard::Follow(CacheHeader* record, const float* gradient, float learning_rate_factor) const {
  float* const since = Since(record);
  float squares = 0;
  for (uint32_t d = 0; d < dim_; ++d) {
    since[d] += learning_rate_factor * gradient[d];
    squares += since[d] * since[d];
  }
  SetStep(record, squares);
}

void CacheShard::TakeDeferred(CacheHeader* record, DeferredGradients* to_send) {
  to_send->ids.push_back(record->id);
  to_send->versions.push_back(*DeferredVersion(record));
  to_send->occurrences.push_back(*DeferredOccurrences(record));
  const float* const sums = DeferredSums(record);
  to_send->sums.insert(to_send->sums.end(), sums, sums + dim_);
  record->deferred = 0;
}

void CacheShard::TakeAllDeferred(DeferredGradients* to_send) {
  if (!defers_) return;
  for (uint32_t slot = 0; slot < used_; ++slot) {
    CacheHeader* const record = RecordAt(slot);
    if (record->version != 0 && record->deferred > 0) TakeDeferred(record, to_send);
  }
}

}  // namespace tandem::ps
