// Rows that leave memory: when their bucket has used up its part of the byte budget, or by age.

#include <algorithm>
#include <limits>
#include <utility>

#include "ps/storage/bucketed_storage.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {

RowStats BucketedStorage::StatsOf(const RowStore& store, const Cell& cell, uint32_t now,
                                  std::vector<float>* floats) const {
  // Modulo 2^32; a row of an update that overtook this one (ASYNC) is new, not four billion updates old.
  const uint32_t age = now - cell.version;
  RowStats facts{.age = static_cast<int32_t>(age) < 0 && age > ~uint32_t{0} - (1u << 20) ? 0 : age};
  const char* const row = store.RowAt(cell.slot);
  if (eviction_->needs_count()) facts.count = layout_.count(row);
  if (eviction_->needs_norm()) {
    floats->resize(dim_);
    LoadRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, floats->data());
    for (const float value : *floats) facts.squared_norm += static_cast<double>(value) * value;
  }
  return facts;
}

std::vector<uint64_t> BucketedStorage::LowestPriority(uint32_t bucket, uint32_t now) const {
  const RowStore& store = buckets_[bucket];
  // A sixteenth at a time: the bucket is looked through once for many rows that leave.
  const uint32_t keep = bucket_quota_ - bucket_quota_ / 16;
  const Border* const border = tier_ == nullptr ? nullptr : &borders_[bucket];
  std::vector<std::pair<double, uint64_t>> rows;
  rows.reserve(store.size());
  std::vector<float> floats;
  store.index().ForEach([&](const Cell& cell) {
    const bool spared =
        border != nullptr && (border->young.contains(cell.id) || border->younger.contains(cell.id));
    rows.emplace_back(
        spared ? std::numeric_limits<double>::max() : eviction_->Priority(StatsOf(store, cell, now, &floats)),
        cell.id);
  });
  const auto middle = rows.begin() + (rows.size() - keep);
  std::nth_element(rows.begin(), middle, rows.end());
  std::vector<uint64_t> leaving;
  leaving.reserve(middle - rows.begin());
  for (auto row = rows.begin(); row != middle; ++row) leaving.push_back(row->second);
  return leaving;
}

void BucketedStorage::EvictToQuota(uint32_t bucket, uint32_t now) {
  EraseRows(&buckets_[bucket], LowestPriority(bucket, now));
}

void BucketedStorage::EraseExpired(RowStore* store, uint32_t now) {
  std::vector<uint64_t> leaving;
  std::vector<float> floats;
  std::as_const(*store).index().ForEach([&](const Cell& cell) {
    if (eviction_->Expired(StatsOf(*store, cell, now, &floats))) leaving.push_back(cell.id);
  });
  EraseRows(store, leaving);
}

void BucketedStorage::EraseRows(RowStore* store, absl::Span<const uint64_t> ids) {
  for (const uint64_t id : ids) store->Erase(id);
  num_rows_.fetch_sub(ids.size(), std::memory_order_relaxed);
  evicted_.fetch_add(ids.size(), std::memory_order_relaxed);
  // After a crowd has left: what stays is moved together and the memory given back.
  if (store->free_slots() > store->size()) store->Compact();
}

}  // namespace tandem::ps
