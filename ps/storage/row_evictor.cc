// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/row_evictor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {
using Cell = Buckets::Cell;
}  // namespace

RowStats RowEvictor::StatsOf(const RowStore& store, const Cell& cell, uint32_t now,
                             std::vector<float>* floats) const {
  RowStats stats{.age = AgeOf(now, cell.version)};
  const RowLayout& layout = buckets_->layout();
  const char* const row = store.RowAt(cell.slot);
  if (policy_->needs_count()) stats.count = layout.count(row);
  if (policy_->needs_norm()) {
    floats->resize(layout.dim);
    LoadRows(layout.dtype, absl::MakeConstSpan(&row, 1), layout.dim, floats->data());
    for (const float value : *floats) stats.squared_norm += static_cast<double>(value) * value;
  }
  return stats;
}

std::vector<uint64_t> RowEvictor::LowestPriority(uint32_t bucket, uint32_t now,
                                                 const RecentRows* spared) const {
  const RowStore& store = std::as_const(*buckets_).store(bucket);
  // A sixteenth leaves at a time, so that one pass over the bucket serves for many rows.
  const uint32_t keep = buckets_->quota() - buckets_->quota() / 16;
  std::vector<std::pair<double, uint64_t>> rows;
  rows.reserve(store.size());
  std::vector<float> floats;
  store.index().ForEach([&](const Cell& cell) {
    const bool is_spared = spared != nullptr && spared->Contains(cell.id);
    rows.emplace_back(is_spared ? std::numeric_limits<double>::max()
                                : policy_->Priority(StatsOf(store, cell, now, &floats)),
                      cell.id);
  });
  const auto middle = rows.begin() + (rows.size() - keep);
  std::nth_element(rows.begin(), middle, rows.end());
  std::vector<uint64_t> leaving;
  leaving.reserve(middle - rows.begin());
  for (auto row = rows.begin(); row != middle; ++row) leaving.push_back(row->second);
  return leaving;
}

void RowEvictor::EvictToQuota(uint32_t bucket, uint32_t now) {
  EraseRows(bucket, LowestPriority(bucket, now, /*spared=*/nullptr), now);
}

void RowEvictor::SweepNext(uint64_t time) {
  if (policy_ == nullptr || !policy_->sweeps()) return;
  const auto now = static_cast<uint32_t>(time);
  const uint32_t bucket = now & (buckets_->num_buckets() - 1);
  const FairLock::Writer lock(&buckets_->LockOfBucket(bucket));
  const LongestTime::Timer timer(&buckets_->longest_pause());
  const RowStore& store = std::as_const(*buckets_).store(bucket);
  std::vector<uint64_t> leaving;
  std::vector<float> floats;
  store.index().ForEach([&](const Cell& cell) {
    if (policy_->Expired(StatsOf(store, cell, now, &floats))) leaving.push_back(cell.id);
  });
  EraseRows(bucket, leaving, now);
}

void RowEvictor::EraseRows(uint32_t bucket, absl::Span<const uint64_t> ids, uint32_t now) {
  RowStore* const store = &buckets_->store(bucket);
  if (buckets_->cut().any_open()) {
    for (const uint64_t id : ids) {
      const Cell* const cell = store->index().Find(id);
      buckets_->cut().Keep(bucket, id, cell->version, store->RowAt(cell->slot));
    }
  }
  for (const uint64_t id : ids) store->Erase(id);
  removed_[bucket].Add(ids, store->size());
  removals_[bucket].Add(ids, now, buckets_->clock(), store->size());
  buckets_->NoteErased(ids.size());
  evicted_.fetch_add(ids.size(), std::memory_order_relaxed);
  buckets_->CompactIfSparse(store);
}

}  // namespace tandem::ps
