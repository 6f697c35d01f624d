// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/buckets.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"
#include "ps/storage/row_codec.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kMinQuota = 4;

// Returns the bytes that a bucket of `rows` rows takes: its slots (a run of a sixteenth, or four, may be
// empty), its share of an index that is about half full, and a twelfth in reserve.
uint64_t BytesOfBucket(uint64_t rows, const RowLayout& layout) {
  const uint64_t bytes =
      (rows + std::max<uint64_t>(4, rows / 16)) * layout.stride + 2 * rows * sizeof(RowIndex::Cell);
  return bytes + bytes / 12;
}

// Returns the most rows that each of `num_buckets` buckets may keep so that all fit the budget.
uint32_t QuotaOf(uint64_t byte_budget, uint32_t num_buckets, const RowLayout& layout) {
  if (byte_budget == 0) return Buckets::kNoQuota;
  uint64_t fits = kMinQuota, too_many = Buckets::kNoQuota;
  while (too_many - fits > 1) {
    const uint64_t rows = (fits + too_many) / 2;
    (BytesOfBucket(rows, layout) <= byte_budget / num_buckets ? fits : too_many) = rows;
  }
  // A sixteenth of the space is for the new rows of a step.
  return static_cast<uint32_t>(std::max<uint64_t>(kMinQuota, fits - fits / 16));
}

}  // namespace

Buckets::Buckets(const RowLayout& layout, uint32_t num_buckets, uint64_t byte_budget)
    : layout_(layout),
      quota_(QuotaOf(byte_budget, num_buckets, layout_)),
      bucket_mask_(num_buckets - 1),
      lock_mask_(std::min(num_buckets, kMaxLocks) - 1),
      pool_(&layout_),
      heads_(num_buckets),
      locks_(std::make_unique<FairLock[]>(lock_mask_ + 1)),
      cut_(&layout_, num_buckets) {
  stores_.reserve(num_buckets);
  for (uint32_t b = 0; b < num_buckets; ++b) stores_.emplace_back(&layout_, &pool_, &arena_, &heads_[b]);
}

void Buckets::ClearBucket(uint32_t bucket) {
  NoteErased(stores_[bucket].size());
  stores_[bucket].Clear();
}

void Buckets::KeepRow(uint32_t bucket, uint64_t id) {
  if (!cut_.any_open()) return;
  const RowStore& store = stores_[bucket];
  const Cell* const cell = store.index().Find(id);
  if (cell == nullptr) return cut_.Keep(bucket, id, 0, nullptr);
  cut_.Keep(bucket, id, cell->version, store.RowAt(cell->slot));
}

void Buckets::PrepareGrowth(std::vector<uint32_t>* buckets) {
  for (const uint32_t bucket : *buckets) {
    RowStore& store = stores_[bucket];
    size_t bytes;
    {
      const FairLock::Reader lock(&LockOfBucket(bucket));
      bytes = store.index().WantedBytes();
    }
    if (bytes == 0) continue;
    Arena::Block memory = arena_.AllocateReady(bytes);
    const FairLock::Writer lock(&LockOfBucket(bucket));
    memory = store.index().TakeSpare(std::move(memory));
  }
  buckets->clear();
}

std::vector<Buckets::StoredRow> Buckets::SortedRows(uint32_t bucket, uint64_t first_id, size_t limit) const {
  const RowStore& store = stores_[bucket];
  const auto by_id = [](const StoredRow& a, const StoredRow& b) { return a.id < b.id; };
  std::vector<StoredRow> rows;
  rows.reserve(std::min<size_t>(limit, store.size()));
  store.ForEach([&](const Cell& cell, const char* row) {
    if (cell.id < first_id) return;
    if (rows.size() < limit) {
      rows.push_back({cell.id, row, cell.version});
      if (rows.size() == limit) std::make_heap(rows.begin(), rows.end(), by_id);
    } else if (limit > 0 && cell.id < rows.front().id) {  // the greatest of those kept
      std::pop_heap(rows.begin(), rows.end(), by_id);
      rows.back() = {cell.id, row, cell.version};
      std::push_heap(rows.begin(), rows.end(), by_id);
    }
  });
  std::sort(rows.begin(), rows.end(), by_id);
  return rows;
}

std::vector<Buckets::StoredRow> Buckets::SortedChanges(uint32_t bucket, uint32_t since,
                                                       uint64_t first_id) const {
  const RowStore& store = stores_[bucket];
  std::vector<StoredRow> rows;
  store.index().ForEach([&](const Cell& cell) {
    if (cell.id < first_id || !ChangedSince(cell.version, since)) return;
    rows.push_back({cell.id, store.RowAt(cell.slot), cell.version});
  });
  std::sort(rows.begin(), rows.end(), [](const StoredRow& a, const StoredRow& b) { return a.id < b.id; });
  return rows;
}

void Buckets::ReadRow(const char* row, float* floats) const {
  LoadRows(layout_.dtype, absl::MakeConstSpan(&row, 1), layout_.dim, floats);
  std::copy_n(layout_.state(row), layout_.state_floats, floats + layout_.dim);
}

void Buckets::PutRow(uint32_t bucket, uint64_t id, uint64_t hash, const float* floats,
                     const RowHistory& history) {
  RowStore& store = stores_[bucket];
  char* row = store.Find(id);
  if (row == nullptr) row = AddRow(&store, id, hash, history.version);
  StoreRows(layout_.dtype, absl::MakeConstSpan(&row, 1), layout_.dim, floats, nullptr);
  std::copy_n(floats + layout_.dim, layout_.state_floats, layout_.state(row));
  layout_.set_count(row, history.count);
  store.index().Find(id)->version = history.version;
}

}  // namespace tandem::ps
