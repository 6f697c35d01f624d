#include "ps/storage/table_storage.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"
#include "ps/initializers/initializer.h"
#include "ps/optimizers/optimizer.h"
#include "ps/partition/shard_map.h"
#include "ps/storage/arena.h"
#include "ps/storage/grouping.h"
#include "ps/storage/row_store.h"

namespace tandem::ps {
namespace {

// A lookup goes through its items as a pipeline: while one item's row is used, the rows of the next
// kRowsAhead are on their way from memory, and the index cells of the kCellsAhead after those.
constexpr size_t kRowsAhead = 12;
constexpr size_t kCellsAhead = 12;
// Items that go through the pipeline before it runs empty.
constexpr size_t kBatch = 256;
// When buckets have few items each, up to so many are locked together to fill a batch. Always in ascending
// order, so that no two calls wait for each other.
constexpr size_t kMaxLocked = 16;

constexpr size_t kCacheLine = 64;

// Asks for the memory [data, data + bytes), up to 1 KiB of it; longer runs the processor's own prefetcher
// sees coming.
inline void PrefetchForRead(const void* data, size_t bytes) {
  const char* p = static_cast<const char*>(data);
  const char* const end = p + std::min<size_t>(bytes, 1024);
  __builtin_prefetch(p);
  for (p += kCacheLine - reinterpret_cast<uintptr_t>(p) % kCacheLine; p < end; p += kCacheLine) {
    __builtin_prefetch(p);
  }
}
inline void PrefetchForWrite(void* data, size_t bytes) {
  char* p = static_cast<char*>(data);
  char* const end = p + std::min<size_t>(bytes, 1024);
  __builtin_prefetch(p, 1);
  for (p += kCacheLine - reinterpret_cast<uintptr_t>(p) % kCacheLine; p < end; p += kCacheLine) {
    __builtin_prefetch(p, 1);
  }
}

struct alignas(kCacheLine) Bucket {
  Bucket(const RowLayout* layout, Arena* arena) : rows(layout, arena) {}
  mutable absl::Mutex mutex;
  RowStore rows ABSL_GUARDED_BY(mutex);
};

// Items [begin, end) of a call and, for each, the rows of its bucket.
struct Batch {
  uint32_t begin;
  uint32_t end;
  RowStore* stores[kBatch];
};

// What one Gather or Apply needs besides its arguments.
struct Scratch {
  struct Duplicate {
    uint32_t update;    // the entry of `updates` that it adds to
    uint32_t position;  // of its gradient
  };
  Grouping grouping;
  std::vector<uint32_t> missing;  // items without a row
  std::vector<RowUpdate> updates;
  std::vector<Duplicate> duplicates;
  std::vector<uint32_t> merged_index;  // per update: its sum in merged_sums, or kNotMerged
  std::vector<float> merged_sums;

  size_t bytes() const {
    return sizeof(Scratch) + grouping.bytes() + missing.capacity() * sizeof(missing[0]) +
           updates.capacity() * sizeof(updates[0]) + duplicates.capacity() * sizeof(duplicates[0]) +
           merged_index.capacity() * sizeof(merged_index[0]) +
           merged_sums.capacity() * sizeof(merged_sums[0]);
  }
};

// Scratch that is not in use. At most as many as calls ever ran at once. Thread-safe.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> Take() {
    absl::MutexLock lock(&mutex_);
    if (idle_.empty()) return std::make_unique<Scratch>();
    std::unique_ptr<Scratch> scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }
  void GiveBack(std::unique_ptr<Scratch> scratch) {
    absl::MutexLock lock(&mutex_);
    idle_.push_back(std::move(scratch));
  }
  size_t idle_bytes() const {
    absl::MutexLock lock(&mutex_);
    size_t total = 0;
    for (const auto& scratch : idle_) total += scratch->bytes();
    return total;
  }

 private:
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_ ABSL_GUARDED_BY(mutex_);
};

class BucketedStorage : public TableStorage {
 public:
  BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets, std::unique_ptr<Optimizer> optimizer,
                  std::unique_ptr<Initializer> initializer)
      : dim_(config.dim()),
        seed_(config.seed()),
        dense_(config.kind() == v1::TableConfig::DENSE),
        dense_rows_(dense_ ? (config.elements() + dim_ - 1) / dim_ : 0),
        optimizer_(std::move(optimizer)),
        initializer_(std::move(initializer)),
        layout_(dim_, optimizer_->state_floats(dim_)),
        num_buckets_(num_buckets) {
    buckets_.reserve(num_buckets);
    for (uint32_t b = 0; b < num_buckets; ++b)
      buckets_.push_back(std::make_unique<Bucket>(&layout_, &arena_));
  }

  void CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns) {
    for (uint64_t id = 0; id < dense_rows_; ++id) {
      const uint32_t b = BucketOf(id, num_buckets_);
      if (!owns(b)) continue;
      Bucket& bucket = *buckets_[b];
      absl::MutexLock lock(&bucket.mutex);
      Row* row = AddRow(&bucket.rows, id, TagOf(id));
      initializer_->Fill(seed_, id, row->floats(), dim_);
      optimizer_->InitState(row->floats(), row->floats() + dim_, dim_);
    }
  }

  void Gather(absl::Span<const uint64_t> ids, bool create, float* out) override {
    std::unique_ptr<Scratch> scratch = scratch_pool_.Take();
    Grouping& grouping = scratch->grouping;
    grouping.Run(ids, num_buckets_);
    ForEachBlock(grouping, [&](absl::Span<const Grouping::Group> block) {
      scratch->missing.clear();
      LockShared(block);
      ForEachBatch(block, [&](const Batch& batch) {
        ReadRows(batch, grouping.items().data(), out, &scratch->missing);
      });
      UnlockShared(block);
      if (!scratch->missing.empty())
        FillMissing(block, grouping.items().data(), scratch->missing, create, out);
    });
    scratch_pool_.GiveBack(std::move(scratch));
  }

  uint64_t Apply(absl::Span<const uint64_t> ids, const float* gradients,
                 float learning_rate_factor) override {
    std::unique_ptr<Scratch> scratch = scratch_pool_.Take();
    Grouping& grouping = scratch->grouping;
    grouping.Run(ids, num_buckets_);
    uint64_t skipped = 0;
    ForEachBlock(grouping, [&](absl::Span<const Grouping::Group> block) {
      LockExclusive(block);
      skipped += CollectUpdates(block, grouping.items().data(), gradients, scratch.get());
      if (!scratch->duplicates.empty()) MergeDuplicates(gradients, scratch.get());
      optimizer_->Update(scratch->updates, dim_, learning_rate_factor);
      UnlockExclusive(block);
    });
    scratch_pool_.GiveBack(std::move(scratch));
    return skipped;
  }

  uint64_t rows() const override { return num_rows_.load(std::memory_order_relaxed); }

  uint64_t bytes() const override {
    uint64_t total = sizeof(*this) + arena_.bytes() + scratch_pool_.idle_bytes();
    for (const auto& bucket : buckets_) {
      absl::ReaderMutexLock lock(&bucket->mutex);
      total += sizeof(Bucket) + sizeof(bucket) + bucket->rows.own_bytes();
    }
    return total;
  }

  uint32_t row_floats() const override { return static_cast<uint32_t>(layout_.row_floats()); }

  void VisitBucket(uint32_t bucket_index,
                   absl::FunctionRef<void(uint64_t id, const float* row)> visit) override {
    TANDEM_CHECK(bucket_index < num_buckets_);
    const Bucket& bucket = *buckets_[bucket_index];
    absl::ReaderMutexLock lock(&bucket.mutex);
    std::vector<const Row*> rows;
    rows.reserve(bucket.rows.size());
    bucket.rows.ForEach([&](const Row& row) { rows.push_back(&row); });
    std::sort(rows.begin(), rows.end(), [](const Row* a, const Row* b) { return a->id < b->id; });
    for (const Row* row : rows) visit(row->id, row->floats());
  }

  void Restore(uint64_t id, const float* floats) override {
    if (OutOfRange(id)) return;
    Bucket& bucket = *buckets_[BucketOf(id, num_buckets_)];
    const uint32_t tag = TagOf(id);
    absl::MutexLock lock(&bucket.mutex);
    Row* row = bucket.rows.Find(id, tag);
    if (row == nullptr) row = AddRow(&bucket.rows, id, tag);
    std::memcpy(row->floats(), floats, layout_.row_floats() * sizeof(float));
  }

  void Clear() override {
    // Regions of the arena go when the last bucket has let go of its slabs in them.
    arena_.StartAfresh();
    for (const auto& bucket : buckets_) {
      absl::MutexLock lock(&bucket->mutex);
      num_rows_.fetch_sub(bucket->rows.size(), std::memory_order_relaxed);
      bucket->rows.Clear();
    }
  }

 private:
  static constexpr uint32_t kNotMerged = ~uint32_t{0};

  bool OutOfRange(uint64_t id) const { return dense_ && id >= dense_rows_; }

  Row* AddRow(RowStore* store, uint64_t id, uint32_t tag) {
    num_rows_.fetch_add(1, std::memory_order_relaxed);
    return store->Insert(id, tag);
  }

  // Calls f(block) for runs of groups that are locked together: several small ones or one of any size.
  template <class F>
  static void ForEachBlock(const Grouping& grouping, const F& f) {
    const absl::Span<const Grouping::Group> groups = grouping.groups();
    for (size_t begin = 0; begin < groups.size();) {
      size_t end = begin + 1;
      while (end < groups.size() && end - begin < kMaxLocked &&
             groups[end].end - groups[begin].begin <= kBatch)
        ++end;
      f(groups.subspan(begin, end - begin));
      begin = end;
    }
  }

  // Calls f(batch) so that the batches of all calls make up the block. The block is locked.
  template <class F>
  void ForEachBatch(absl::Span<const Grouping::Group> block, const F& f) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    Batch batch;
    size_t group = 0;
    for (batch.begin = block.front().begin; batch.begin < block.back().end; batch.begin = batch.end) {
      batch.end = std::min<uint32_t>(block.back().end, batch.begin + kBatch);
      for (uint32_t k = batch.begin; k < batch.end; ++k) {
        while (k == block[group].end) ++group;
        batch.stores[k - batch.begin] = &buckets_[block[group].bucket]->rows;
      }
      f(batch);
    }
  }

  void LockShared(absl::Span<const Grouping::Group> block) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const Grouping::Group& group : block) buckets_[group.bucket]->mutex.ReaderLock();
  }
  void UnlockShared(absl::Span<const Grouping::Group> block) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const Grouping::Group& group : block) buckets_[group.bucket]->mutex.ReaderUnlock();
  }
  void LockExclusive(absl::Span<const Grouping::Group> block) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const Grouping::Group& group : block) buckets_[group.bucket]->mutex.Lock();
  }
  void UnlockExclusive(absl::Span<const Grouping::Group> block) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const Grouping::Group& group : block) buckets_[group.bucket]->mutex.Unlock();
  }

  // Finds the rows of the batch's items: found(k, row) for each item k in order, row = nullptr where it has
  // none. prefetch(k, row) goes some way ahead of it for those likely to have one.
  template <class Prefetch, class Found>
  static void FindRows(const Batch& batch, const Grouping::Item* items, const Prefetch& prefetch,
                       const Found& found) {
    const size_t count = batch.end - batch.begin;
    items += batch.begin;
    Row* candidates[kBatch];
    const auto find_candidate = [&](size_t i) {
      candidates[i] = batch.stores[i]->Candidate(items[i].tag);
      if (candidates[i] != nullptr) prefetch(batch.begin + static_cast<uint32_t>(i), candidates[i]);
    };
    size_t cell = 0, row = 0;
    for (; cell < std::min(count, kRowsAhead + kCellsAhead); ++cell)
      batch.stores[cell]->PrefetchCell(items[cell].tag);
    for (; row < std::min(count, kRowsAhead); ++row) find_candidate(row);
    for (size_t i = 0; i < count; ++i) {
      if (cell < count) {
        batch.stores[cell]->PrefetchCell(items[cell].tag);
        ++cell;
      }
      if (row < count) {
        find_candidate(row);
        ++row;
      }
      found(batch.begin + static_cast<uint32_t>(i),
            batch.stores[i]->Confirm(candidates[i], items[i].id, items[i].tag));
    }
  }

  void ReadRows(const Batch& batch, const Grouping::Item* items, float* out,
                std::vector<uint32_t>* missing) const {
    const size_t bytes = dim_ * sizeof(float);
    FindRows(
        batch, items,
        // Not the caller's memory, here and in CollectUpdates: the processor orders those accesses well by
        // itself, and asking ahead for them was measured to cost a third of the speed at dim 16.
        [&](uint32_t k, const Row* row) { PrefetchForRead(row, sizeof(Row) + bytes); },
        [&](uint32_t k, const Row* row) {
          if (row == nullptr) {
            missing->push_back(k);
          } else {
            std::memcpy(out + items[k].position * dim_, row->floats(), bytes);
          }
        });
  }

  // Values for items that had no row when the block was read; `missing` is ascending.
  void FillMissing(absl::Span<const Grouping::Group> block, const Grouping::Item* items,
                   absl::Span<const uint32_t> missing, bool create, float* out) {
    // Before taking a lock: initial values may be slow to compute and depend on nothing that it guards.
    for (const uint32_t k : missing) {
      float* values = out + items[k].position * dim_;
      if (OutOfRange(items[k].id)) {
        std::fill_n(values, dim_, 0.0f);
      } else {
        initializer_->Fill(seed_, items[k].id, values, dim_);
      }
    }
    if (!create || dense_) return;
    size_t next = 0;
    for (const Grouping::Group& group : block) {
      if (next == missing.size()) break;
      if (missing[next] >= group.end) continue;
      Bucket& bucket = *buckets_[group.bucket];
      absl::MutexLock lock(&bucket.mutex);
      for (; next < missing.size() && missing[next] < group.end; ++next) {
        const Grouping::Item& item = items[missing[next]];
        float* values = out + item.position * dim_;
        // Another call, or an earlier item of this one, may have made the row meanwhile.
        if (const Row* row = bucket.rows.Find(item.id, item.tag)) {
          std::memcpy(values, row->floats(), dim_ * sizeof(float));
          continue;
        }
        Row* row = AddRow(&bucket.rows, item.id, item.tag);
        std::memcpy(row->floats(), values, dim_ * sizeof(float));
        optimizer_->InitState(row->floats(), row->floats() + dim_, dim_);
      }
    }
  }

  // Fills scratch->updates with one entry per distinct row of the (locked) block, and scratch->duplicates
  // with the gradients beyond the first of each. Returns how many items have no row.
  uint64_t CollectUpdates(absl::Span<const Grouping::Group> block, const Grouping::Item* items,
                          const float* gradients, Scratch* scratch) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    scratch->updates.clear();
    scratch->duplicates.clear();
    uint64_t skipped = 0;
    // A row already seen in this call tells by its stamp which entry of `updates` is its own.
    uint32_t stamps[kMaxLocked];
    size_t stamped = 0;  // groups begun
    const uint32_t* stamp = stamps;
    uint32_t first_update = 0;  // of the group at hand
    for (const Grouping::Group& group : block) {
      stamps[stamped++] = buckets_[group.bucket]->rows.BeginUpdates(group.end - group.begin);
    }
    size_t g = 0;
    ForEachBatch(block, [&](const Batch& batch) {
      FindRows(
          batch, items, [&](uint32_t k, Row* row) { PrefetchForWrite(row, layout_.stride); },
          [&](uint32_t k, Row* row) {
            if (k >= block[g].end) {
              while (k >= block[g].end) ++g;
              stamp = &stamps[g];
              first_update = static_cast<uint32_t>(scratch->updates.size());
            }
            if (row == nullptr) {
              ++skipped;
            } else if (row->stamp >= *stamp) {
              scratch->duplicates.push_back({first_update + (row->stamp - *stamp), items[k].position});
            } else {
              row->stamp = *stamp + (static_cast<uint32_t>(scratch->updates.size()) - first_update);
              scratch->updates.push_back(
                  {row->floats(), row->floats() + dim_, gradients + items[k].position * dim_});
            }
          });
    });
    return skipped;
  }

  void MergeDuplicates(const float* gradients, Scratch* scratch) const {
    scratch->merged_index.assign(scratch->updates.size(), kNotMerged);
    scratch->merged_sums.resize(scratch->duplicates.size() * dim_);
    uint32_t merged = 0;
    for (const Scratch::Duplicate& duplicate : scratch->duplicates) {
      RowUpdate& update = scratch->updates[duplicate.update];
      uint32_t& index = scratch->merged_index[duplicate.update];
      const bool first = index == kNotMerged;
      if (first) index = merged++;
      float* sum = scratch->merged_sums.data() + size_t{index} * dim_;
      if (first) {
        std::memcpy(sum, update.gradient, dim_ * sizeof(float));
        update.gradient = sum;
      }
      const float* gradient = gradients + size_t{duplicate.position} * dim_;
      for (size_t i = 0; i < dim_; ++i) sum[i] += gradient[i];
    }
  }

  const size_t dim_;
  const uint64_t seed_;
  const bool dense_;
  const uint64_t dense_rows_;  // DENSE: ids are [0, dense_rows_)
  const std::unique_ptr<Optimizer> optimizer_;
  const std::unique_ptr<Initializer> initializer_;
  const RowLayout layout_;
  const uint32_t num_buckets_;
  Arena arena_;  // outlives the buckets, whose slabs are its
  std::vector<std::unique_ptr<Bucket>> buckets_;
  std::atomic<uint64_t> num_rows_{0};
  ScratchPool scratch_pool_;
};

}  // namespace

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
