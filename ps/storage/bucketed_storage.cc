#include "ps/storage/bucketed_storage.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "ps/storage/row_codec.h"
#include "ps/table.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kMinQuota = 4;

// What a bucket of so many rows takes: its slots (a run of a sixteenth, or four, may be empty), its part of
// an index that is about half full, and a twelfth in reserve.
uint64_t BucketBytes(uint64_t rows, const RowLayout& layout) {
  const uint64_t bytes =
      (rows + std::max<uint64_t>(4, rows / 16)) * layout.stride + 2 * rows * sizeof(RowIndex::Cell);
  return bytes + bytes / 12;
}

// The most rows that each of `num_buckets` buckets may keep so that all fit the budget.
uint32_t QuotaOf(uint64_t byte_budget, uint32_t num_buckets, const RowLayout& layout, uint32_t no_quota) {
  if (byte_budget == 0) return no_quota;
  uint64_t fits = kMinQuota, too_many = no_quota;
  while (too_many - fits > 1) {
    const uint64_t rows = (fits + too_many) / 2;
    (BucketBytes(rows, layout) <= byte_budget / num_buckets ? fits : too_many) = rows;
  }
  // A sixteenth of the room is for the new rows of a step.
  return static_cast<uint32_t>(std::max<uint64_t>(kMinQuota, fits - fits / 16));
}

}  // namespace

BucketedStorage::BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets, Policies policies)
    : name_(config.name()),
      dim_(config.dim()),
      seed_(config.seed()),
      dense_(config.kind() == v1::TableConfig::DENSE),
      dense_rows_(dense_ ? (config.elements() + dim_ - 1) / dim_ : 0),
      stochastic_rounding_(config.stochastic_rounding()),
      optimizer_(std::move(policies.optimizer)),
      initializer_(std::move(policies.initializer)),
      admission_(std::move(policies.admission)),
      eviction_(std::move(policies.eviction)),
      tier_(std::move(policies.tier)),
      layout_(dim_, optimizer_->state_floats(dim_), RowTypeOf(config),
              eviction_ != nullptr && eviction_->needs_count()),
      cold_row_bytes_(sizeof(uint32_t) + layout_.row_bytes),
      bucket_quota_(QuotaOf(config.byte_budget(), num_buckets, layout_, kNoQuota)),
      bucket_mask_(num_buckets - 1),
      lock_mask_(std::min(num_buckets, kLocks) - 1),
      pool_(&layout_),
      heads_(num_buckets),
      locks_(std::make_unique<FairLock[]>(lock_mask_ + 1)),
      doors_(std::make_unique<Door[]>(lock_mask_ + 1)),
      borders_(tier_ == nullptr ? nullptr : std::make_unique<Border[]>(num_buckets)) {
  for (uint32_t b = 0; tier_ != nullptr && b < num_buckets; ++b) borders_[b].left = SeenFilter(bucket_quota_);
  buckets_.reserve(num_buckets);
  for (uint32_t b = 0; b < num_buckets; ++b) buckets_.emplace_back(&layout_, &pool_, &arena_, &heads_[b]);
  // Made when they are first needed: a server has counters only for the buckets that are its.
  filters_.resize(admission_->counter_bytes(num_buckets) > 0 ? num_buckets : 0);
}

void BucketedStorage::CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns) {
  std::vector<float> values(dim_);
  for (uint64_t id = 0; id < dense_rows_; ++id) {
    const uint64_t hash = Mix64(id);
    const uint32_t b = BucketOfHash(hash);
    if (!owns(b)) continue;
    InitialValues(id, values.data());
    const FairLock::Writer lock(&LockOfBucket(b));
    InitRow(AddRow(&buckets_[b], id, hash, 0), values.data());
  }
}

StorageStatistics BucketedStorage::Statistics() const {
  StorageStatistics statistics;
  statistics.rows = num_rows_.load(std::memory_order_relaxed);
  if (bucket_quota_ != kNoQuota) statistics.budget_rows = uint64_t{bucket_quota_} * (bucket_mask_ + 1);
  statistics.bytes =
      sizeof(*this) + arena_.bytes() + pool_.bytes() + (lock_mask_ + 1) * (sizeof(FairLock) + sizeof(Door));
  for (uint32_t b = 0; b <= bucket_mask_; ++b) {
    const FairLock::Reader lock(&LockOfBucket(b));
    statistics.bytes += sizeof(RowStore) + sizeof(RowIndex::Head) + buckets_[b].own_bytes();
    if (!filters_.empty()) statistics.bytes += sizeof(filters_[b]) + filters_[b].capacity();
    if (tier_ != nullptr) {
      const Border& border = borders_[b];
      statistics.bytes += sizeof(Border) + border.left.bytes() +
                          (border.young.capacity() + border.younger.capacity()) * (sizeof(uint64_t) + 1);
    }
  }
  {
    absl::MutexLock lock(&scratch_mutex_);
    for (const auto& scratch : idle_scratch_) statistics.bytes += scratch->bytes();
  }
  statistics.admitted_rows = admitted_.load(std::memory_order_relaxed);
  statistics.refused_rows = refused_.load(std::memory_order_relaxed);
  statistics.evicted_rows = evicted_.load(std::memory_order_relaxed);
  statistics.longest_pause_us = static_cast<double>(longest_pause_ns_.load(std::memory_order_relaxed)) * 1e-3;
  if (tier_ != nullptr) {
    statistics.spilled_rows = cold_rows_.load(std::memory_order_relaxed);
    statistics.spilled_bytes = tier_->bytes();
    statistics.spill_reads = spill_reads_.load(std::memory_order_relaxed);
    statistics.spill_writes = spill_writes_.load(std::memory_order_relaxed);
    statistics.failed_spills = failed_spills_.load(std::memory_order_relaxed);
  }
  return statistics;
}

absl::Status BucketedStorage::VisitBucket(uint32_t bucket, RowVisitor visit) {
  TANDEM_CHECK(bucket <= bucket_mask_);
  struct Found {
    uint64_t id;
    const char* row;
    uint32_t version;
  };
  TANDEM_RETURN_IF_ERROR(CheckWhole());
  absl::ReaderMutexLock door(&DoorOfBucket(bucket));
  const FairLock::Reader lock(&LockOfBucket(bucket));
  const RowStore& store = buckets_[bucket];
  std::vector<Found> found;
  found.reserve(store.size());
  store.ForEach([&](const Cell& cell, const char* row) { found.push_back({cell.id, row, cell.version}); });
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.id < b.id; });
  std::vector<float> floats(layout_.row_floats());
  const auto visit_one = [&](const Found& one) {
    LoadRows(layout_.dtype, absl::MakeConstSpan(&one.row, 1), dim_, floats.data());
    std::copy_n(layout_.state(one.row), layout_.state_floats, floats.data() + dim_);
    visit(one.id, floats.data(), {one.version, layout_.count(one.row)});
  };
  auto next = found.begin();
  const uint32_t cold = tier_ == nullptr ? 0 : borders_[bucket].cold.load(std::memory_order_relaxed);
  if (cold > 0) {
    uint32_t visited = 0;
    std::vector<float> aligned((cold_row_bytes_ + sizeof(float) - 1) / sizeof(float));
    const auto* const copy = reinterpret_cast<const char*>(aligned.data());
    TANDEM_RETURN_IF_ERROR(tier_->VisitBucket(bucket, cold_row_bytes_, [&](uint64_t id, const char* row) {
      for (; next != found.end() && next->id < id; ++next) visit_one(*next);
      if (next != found.end() && next->id == id) return;  // superseded
      std::memcpy(aligned.data(), row, cold_row_bytes_);
      uint32_t version;
      std::memcpy(&version, copy, sizeof(version));
      visit_one({id, copy + sizeof(version), version});
      ++visited;
    }));
    if (visited != cold) {
      return absl::DataLossError(absl::StrCat("table '", name_, "': bucket ", bucket, " should have ", cold,
                                              " rows on disk and has ", visited));
    }
  }
  for (; next != found.end(); ++next) visit_one(*next);
  return absl::OkStatus();
}

absl::Status BucketedStorage::Restore(uint64_t id, const float* floats, const RowHistory& history) {
  if (OutOfRange(id)) return absl::OkStatus();
  if (tier_ != nullptr) return RestoreOverTier(id, floats, history);
  const uint64_t hash = Mix64(id);
  const uint32_t b = BucketOfHash(hash);
  const FairLock::Writer lock(&LockOfBucket(b));
  PutRow(b, id, hash, floats, history);
  return absl::OkStatus();
}

void BucketedStorage::PutRow(uint32_t bucket, uint64_t id, uint64_t hash, const float* floats,
                             const RowHistory& history) {
  RowStore& store = buckets_[bucket];
  char* row = store.Find(id);
  if (row == nullptr) row = AddRow(&store, id, hash, history.version);
  StoreRows(layout_.dtype, absl::MakeConstSpan(&row, 1), dim_, floats, nullptr);
  std::copy_n(floats + dim_, layout_.state_floats, layout_.state(row));
  layout_.set_count(row, history.count);
  store.index().Find(id)->version = history.version;
}

std::string BucketedStorage::SaveFilter(uint32_t bucket) const {
  if (filters_.empty()) return {};
  const FairLock::Reader lock(&LockOfBucket(bucket));
  return std::string(filters_[bucket].begin(), filters_[bucket].end());
}

bool BucketedStorage::RestoreFilter(uint32_t bucket, absl::string_view counters) {
  if (filters_.empty() || counters.size() != admission_->counter_bytes(bucket_mask_ + 1)) return false;
  const FairLock::Writer lock(&LockOfBucket(bucket));
  filters_[bucket].assign(counters.begin(), counters.end());
  return true;
}

void BucketedStorage::Clear() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  // Doors are shut only where there is a disk behind them.
  const uint32_t doors = tier_ == nullptr ? 0 : lock_mask_ + 1;
  for (uint32_t d = 0; d < doors; ++d) doors_[d].mutex.Lock();
  for (uint32_t b = 0; b <= bucket_mask_; ++b) {
    const FairLock::Writer lock(&LockOfBucket(b));
    num_rows_.fetch_sub(buckets_[b].size(), std::memory_order_relaxed);
    buckets_[b].Clear();
    if (!filters_.empty()) filters_[b] = {};
    if (tier_ == nullptr) continue;
    cold_rows_.fetch_sub(borders_[b].cold.exchange(0), std::memory_order_relaxed);
    borders_[b].left.Clear();
    borders_[b].young.clear();
    borders_[b].younger.clear();
  }
  if (tier_ != nullptr) {
    tier_->Clear();
    absl::MutexLock lock(&damage_mutex_);
    damage_ = absl::OkStatus();
    damaged_.store(false, std::memory_order_release);
  }
  for (uint32_t d = 0; d < doors; ++d) doors_[d].mutex.Unlock();
}

size_t BucketedStorage::Scratch::bytes() const {
  return sizeof(Scratch) + grouping.bytes() + ids.capacity() * sizeof(ids[0]) +
         updates.capacity() * sizeof(updates[0]) + update_ids.capacity() * sizeof(update_ids[0]) +
         duplicates.capacity() * sizeof(duplicates[0]) + seen.capacity() * (sizeof(*seen.begin()) + 1) +
         merged_index.capacity() * sizeof(merged_index[0]) + merged_sums.capacity() * sizeof(merged_sums[0]) +
         weights.capacity() * sizeof(weights[0]) + absent.capacity() * sizeof(absent[0]) +
         over.capacity() * sizeof(over[0]) + cold_at.capacity() * sizeof(cold_at[0]) +
         cold_keys.capacity() * sizeof(cold_keys[0]) + cold_found.capacity() + cold_rows.capacity();
}

std::unique_ptr<BucketedStorage::Scratch> BucketedStorage::TakeScratch() {
  absl::MutexLock lock(&scratch_mutex_);
  if (idle_scratch_.empty()) return std::make_unique<Scratch>();
  std::unique_ptr<Scratch> scratch = std::move(idle_scratch_.back());
  idle_scratch_.pop_back();
  return scratch;
}

void BucketedStorage::ReleaseScratch(std::unique_ptr<Scratch> scratch) {
  absl::MutexLock lock(&scratch_mutex_);
  idle_scratch_.push_back(std::move(scratch));
}

std::unique_ptr<TableStorage> TableStorage::Create(const v1::TableConfig& config, uint32_t num_buckets,
                                                   absl::FunctionRef<bool(uint32_t bucket)> owns,
                                                   std::unique_ptr<ColdTier> tier) {
  TANDEM_CHECK(config.spill() == (tier != nullptr));
  TANDEM_CHECK(num_buckets > 0 && (num_buckets & (num_buckets - 1)) == 0);
  absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(config.optimizer());
  TANDEM_CHECK_MSG(optimizer.ok(), optimizer.status().message());
  absl::StatusOr<std::unique_ptr<Initializer>> initializer = MakeInitializer(config.initializer());
  TANDEM_CHECK_MSG(initializer.ok(), initializer.status().message());
  absl::StatusOr<std::unique_ptr<Admission>> admission = MakeAdmission(config.admission());
  TANDEM_CHECK_MSG(admission.ok(), admission.status().message());
  absl::StatusOr<std::unique_ptr<Eviction>> eviction = MakeEviction(config.eviction());
  TANDEM_CHECK_MSG(eviction.ok(), eviction.status().message());
  auto storage = std::make_unique<BucketedStorage>(
      config, num_buckets,
      BucketedStorage::Policies{*std::move(optimizer), *std::move(initializer), *std::move(admission),
                                *std::move(eviction), std::move(tier)});
  storage->CreateDenseRows(owns);
  return storage;
}

}  // namespace tandem::ps
