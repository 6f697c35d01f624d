#include "ps/storage/bucketed_storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "base/status.h"
#include "ps/storage/row_codec.h"
#include "ps/table.h"

namespace tandem::ps {
BucketedStorage::BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets,
                                 std::unique_ptr<Optimizer> optimizer,
                                 std::unique_ptr<Initializer> initializer)
    : dim_(config.dim()),
      seed_(config.seed()),
      dense_(config.kind() == v1::TableConfig::DENSE),
      dense_rows_(dense_ ? (config.elements() + dim_ - 1) / dim_ : 0),
      stochastic_rounding_(config.stochastic_rounding()),
      optimizer_(std::move(optimizer)),
      initializer_(std::move(initializer)),
      layout_(dim_, optimizer_->state_floats(dim_), RowTypeOf(config)),
      bucket_mask_(num_buckets - 1),
      lock_mask_(std::min(num_buckets, kLocks) - 1),
      locks_(std::make_unique<Lock[]>(lock_mask_ + 1)) {
  buckets_.reserve(num_buckets);
  for (uint32_t b = 0; b < num_buckets; ++b) buckets_.emplace_back(&layout_, &arena_);
}

void BucketedStorage::CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns) {
  std::vector<float> values(dim_);
  for (uint64_t id = 0; id < dense_rows_; ++id) {
    const uint64_t hash = Mix64(id);
    const uint32_t b = BucketOfHash(hash);
    if (!owns(b)) continue;
    InitialValues(id, values.data());
    absl::MutexLock lock(&LockOfBucket(b));
    InitRow(AddRow(&buckets_[b], id, hash), values.data());
  }
}

StorageStatistics BucketedStorage::Statistics() const {
  StorageStatistics statistics;
  statistics.rows = rows();
  statistics.bytes = sizeof(*this) + arena_.bytes() + (lock_mask_ + 1) * sizeof(Lock);
  for (uint32_t b = 0; b <= bucket_mask_; ++b) {
    absl::ReaderMutexLock lock(&LockOfBucket(b));
    statistics.bytes += sizeof(RowStore) + buckets_[b].own_bytes();
  }
  {
    absl::MutexLock lock(&scratch_mutex_);
    for (const auto& scratch : idle_scratch_) statistics.bytes += scratch->bytes();
  }
  statistics.admitted_rows = admitted_.load(std::memory_order_relaxed);
  statistics.refused_rows = refused_.load(std::memory_order_relaxed);
  statistics.evicted_rows = evicted_.load(std::memory_order_relaxed);
  statistics.longest_pause_us = static_cast<double>(longest_pause_ns_.load(std::memory_order_relaxed)) * 1e-3;
  return statistics;
}

void BucketedStorage::VisitBucket(uint32_t bucket, RowVisitor visit) {
  TANDEM_CHECK(bucket <= bucket_mask_);
  struct Found {
    uint64_t id;
    const char* row;
    uint32_t version;
  };
  absl::ReaderMutexLock lock(&LockOfBucket(bucket));
  const RowStore& store = buckets_[bucket];
  std::vector<Found> found;
  found.reserve(store.size());
  store.ForEach([&](const Cell& cell, const char* row) { found.push_back({cell.id, row, cell.version}); });
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.id < b.id; });
  std::vector<float> floats(layout_.row_floats());
  for (const Found& one : found) {
    LoadRows(layout_.dtype, absl::MakeConstSpan(&one.row, 1), dim_, floats.data());
    std::copy_n(layout_.state(one.row), layout_.state_floats, floats.data() + dim_);
    visit(one.id, floats.data(), {one.version, layout_.count(one.row)});
  }
}

void BucketedStorage::Restore(uint64_t id, const float* floats, const RowHistory& history) {
  if (OutOfRange(id)) return;
  const uint64_t hash = Mix64(id);
  const uint32_t b = BucketOfHash(hash);
  absl::MutexLock lock(&LockOfBucket(b));
  RowStore& store = buckets_[b];
  char* row = store.Find(id);
  if (row == nullptr) row = AddRow(&store, id, hash);
  StoreRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, floats, nullptr);
  std::copy_n(floats + dim_, layout_.state_floats, layout_.state(row));
  layout_.set_count(row, history.count);
  store.index().Find(id)->version = history.version;
}

std::string BucketedStorage::SaveFilter(uint32_t bucket) const { return {}; }
bool BucketedStorage::RestoreFilter(uint32_t bucket, absl::string_view counters) { return counters.empty(); }

void BucketedStorage::Clear() {
  for (uint32_t b = 0; b <= bucket_mask_; ++b) {
    absl::MutexLock lock(&LockOfBucket(b));
    num_rows_.fetch_sub(buckets_[b].size(), std::memory_order_relaxed);
    buckets_[b].Clear();
  }
}

size_t BucketedStorage::Scratch::bytes() const {
  return sizeof(Scratch) + grouping.bytes() + ids.capacity() * sizeof(ids[0]) +
         updates.capacity() * sizeof(updates[0]) + row_updates.capacity() * sizeof(row_updates[0]) +
         duplicates.capacity() * sizeof(duplicates[0]) + seen.capacity() * (sizeof(*seen.begin()) + 1) +
         merged_index.capacity() * sizeof(merged_index[0]) + merged_sums.capacity() * sizeof(merged_sums[0]) +
         weights.capacity() * sizeof(weights[0]) + row_pointers.capacity() * sizeof(row_pointers[0]) +
         rounding_keys.capacity() * sizeof(rounding_keys[0]);
}

std::unique_ptr<BucketedStorage::Scratch> BucketedStorage::TakeScratch() {
  absl::MutexLock lock(&scratch_mutex_);
  if (idle_scratch_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(idle_scratch_.back());
  idle_scratch_.pop_back();
  return scratch;
}

void BucketedStorage::GiveBackScratch(std::unique_ptr<Scratch> scratch) {
  absl::MutexLock lock(&scratch_mutex_);
  idle_scratch_.push_back(std::move(scratch));
}

std::unique_ptr<TableStorage> TableStorage::Create(const v1::TableConfig& config, uint32_t num_buckets,
                                                   absl::FunctionRef<bool(uint32_t bucket)> owns) {
  TANDEM_CHECK(num_buckets > 0 && (num_buckets & (num_buckets - 1)) == 0);
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(config.optimizer());
  TANDEM_CHECK_MSG(optimizer.ok(), optimizer.status().message());
  absl::StatusOr<std::unique_ptr<Initializer>> initializer = MakeInitializer(config.initializer());
  TANDEM_CHECK_MSG(initializer.ok(), initializer.status().message());
  auto storage =
      std::make_unique<BucketedStorage>(config, num_buckets, *std::move(optimizer), *std::move(initializer));
  storage->CreateDenseRows(owns);
  return storage;
}

}  // namespace tandem::ps
