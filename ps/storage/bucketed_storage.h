#ifndef TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_
#define TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_

// The inside of TableStorage. Reading is in gather.cc, updating in apply.cc, eviction in evict.cc, the rest
// in bucketed_storage.cc.
//
// Locks. Bucket b belongs to lock b mod kLocks. A read locks, shared, all locks that a run of its ids needs
// at once and then takes the ids in the order given, so that what it writes is written in sequence: with 256
// locks taken one after the other, sorting the ids by lock and writing in that order cost as much as reading
// the rows. A write sorts its ids by lock and takes one lock (or several small ones) at a time, so that
// writers meet only where their rows do. Always in ascending order, so that no two calls wait for each other.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/admission/admission.h"
#include "ps/eviction/eviction.h"
#include "ps/initializers/initializer.h"
#include "ps/optimizers/optimizer.h"
#include "ps/partition/shard_map.h"
#include "ps/storage/arena.h"
#include "ps/storage/grouping.h"
#include "ps/storage/lookup.h"
#include "ps/storage/row_layout.h"
#include "ps/storage/row_pool.h"
#include "ps/storage/row_store.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

class BucketedStorage : public TableStorage {
 public:
  struct Policies {
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Initializer> initializer;
    std::unique_ptr<Admission> admission;
    std::unique_ptr<Eviction> eviction;  // may be nullptr
  };
  BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets, Policies policies);

  void CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns);

  absl::Status Gather(absl::Span<const uint64_t> ids, bool create, float* out) override;
  absl::StatusOr<size_t> GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached, uint64_t max_age,
                                     bool create, float* out, uint8_t* sent) override;
  absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                 const ApplyOptions& options) override;
  uint64_t rows() const override { return num_rows_.load(std::memory_order_relaxed); }
  StorageStatistics Statistics() const override;
  uint32_t row_floats() const override { return static_cast<uint32_t>(layout_.row_floats()); }
  absl::Status VisitBucket(uint32_t bucket, RowVisitor visit) override;
  absl::Status Restore(uint64_t id, const float* row, const RowHistory& history) override;
  std::string SaveFilter(uint32_t bucket) const override;
  bool RestoreFilter(uint32_t bucket, absl::string_view counters) override;
  uint64_t clock() const override { return clock_.load(std::memory_order_relaxed); }
  void SetClock(uint64_t clock) override { clock_.store(clock, std::memory_order_relaxed); }
  void Clear() override;

 private:
  using Cell = RowIndex::Cell;
  static constexpr uint32_t kLocks = 32;
  static constexpr uint32_t kNoQuota = ~uint32_t{0};
  // Items that are worth a locking of several locks together.
  static constexpr size_t kBatch = 256;

  struct alignas(64) Lock {
    mutable absl::Mutex mutex;
  };
  struct Duplicate {
    uint32_t update;    // the entry of `updates` that it adds to
    uint32_t position;  // of its gradient
  };
  // What one call needs besides its arguments.
  struct Scratch {
    Grouping grouping;
    std::vector<uint64_t> ids;
    std::vector<RowUpdate> updates;    // weights: where the row lies
    std::vector<uint64_t> update_ids;  // of `updates`, for stochastic rounding
    std::vector<Duplicate> duplicates;
    absl::flat_hash_map<const char*, uint32_t> seen;  // row -> entry of `updates`, once there is a duplicate
    std::vector<uint32_t> merged_index;               // per update: its sum in merged_sums, or kNotMerged
    std::vector<float> merged_sums;
    std::vector<float> weights;  // of rows that are not stored as floats
    size_t bytes() const;
  };
  // Notes how long locks are held alone.
  class PauseTimer {
   public:
    explicit PauseTimer(std::atomic<int64_t>* longest) : longest_(longest) {}
    ~PauseTimer() {
      const int64_t nanos =
          std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - start_)
              .count();
      int64_t longest = longest_->load(std::memory_order_relaxed);
      while (nanos > longest && !longest_->compare_exchange_weak(longest, nanos, std::memory_order_relaxed)) {
      }
    }

   private:
    std::atomic<int64_t>* const longest_;
    const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  };

  bool OutOfRange(uint64_t id) const { return dense_ && id >= dense_rows_; }
  uint32_t BucketOfHash(uint64_t hash) const { return static_cast<uint32_t>(hash >> 32) & bucket_mask_; }
  uint32_t LockOfHash(uint64_t hash) const { return static_cast<uint32_t>(hash >> 32) & lock_mask_; }
  absl::Mutex& LockOfBucket(uint32_t bucket) const { return locks_[bucket & lock_mask_].mutex; }

  std::unique_ptr<Scratch> TakeScratch();
  void GiveBackScratch(std::unique_ptr<Scratch> scratch);

  Indexes indexes() const { return {heads_.data(), bucket_mask_}; }

  // gather.cc
  // Bit l: reading `ids` takes lock l.
  uint32_t LocksOf(absl::Span<const uint64_t> ids) const;
  void LockShared(uint32_t locks) const;
  void UnlockShared(uint32_t locks) const;
  void GatherRun(absl::Span<const uint64_t> ids, uint32_t first, float* out, std::vector<uint32_t>* missing);
  void FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                   float* out);
  // The row's initial values, as they read once they are stored.
  void InitialValues(uint64_t id, float* values) const;
  // Writes initial values and state to a new row.
  void InitRow(char* row, const float* values) const;
  char* AddRow(RowStore* store, uint64_t id, uint64_t hash, uint32_t version);

  // apply.cc
  template <class F>
  void ForEachBlock(const Grouping& grouping, const F& f);
  // Makes rows for those items without one that admission wants now.
  void AdmitItems(absl::Span<const Grouping::Item> items, uint64_t now, Scratch* scratch);
  uint64_t CollectUpdates(absl::Span<const Grouping::Item> items, uint32_t now, const float* gradients,
                          const float* row_factors, Scratch* scratch);
  bool IsDuplicate(const char* row, uint32_t position, bool suspicious, Scratch* scratch);
  void MergeDuplicates(const float* gradients, Scratch* scratch);
  void RunOptimizer(uint32_t now, float learning_rate_factor, Scratch* scratch);
  void UpdateUnpacked(size_t first, absl::Span<RowUpdate> some, uint32_t now, float learning_rate_factor,
                      Scratch* scratch);
  void Count(char* row) const;

  // evict.cc; under the bucket's lock.
  RowFacts FactsOf(const RowStore& store, const Cell& cell, uint32_t now, std::vector<float>* floats) const;
  // Erases the rows of least worth until the bucket holds a sixteenth less than its quota.
  void EvictToQuota(RowStore* store, uint32_t now);
  void EraseExpired(RowStore* store, uint32_t now);
  void EraseRows(RowStore* store, absl::Span<const uint64_t> ids);

  const size_t dim_;
  const uint64_t seed_;
  const bool dense_;
  const uint64_t dense_rows_;  // DENSE: ids are [0, dense_rows_)
  const bool stochastic_rounding_;
  const std::unique_ptr<Optimizer> optimizer_;
  const std::unique_ptr<Initializer> initializer_;
  const std::unique_ptr<Admission> admission_;
  const std::unique_ptr<Eviction> eviction_;
  const RowLayout layout_;
  const uint32_t bucket_quota_;  // rows a bucket may hold after an update
  const uint32_t bucket_mask_;
  const uint32_t lock_mask_;
  // What the buckets' memory and heads are of outlives them.
  Arena arena_;
  RowPool pool_;
  std::vector<RowIndex::Head> heads_;          // each guarded by its bucket's lock
  std::vector<RowStore> buckets_;              // each guarded by its lock
  std::vector<std::vector<uint8_t>> filters_;  // admission counters, one a bucket or none; likewise guarded
  const std::unique_ptr<Lock[]> locks_;
  std::atomic<uint64_t> num_rows_{0};
  std::atomic<uint64_t> clock_{0};
  std::atomic<uint64_t> admitted_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> evicted_{0};
  std::atomic<int64_t> longest_pause_ns_{0};

  // Scratch that is not in use. At most as many as calls ever ran at once.
  mutable absl::Mutex scratch_mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_scratch_ ABSL_GUARDED_BY(scratch_mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_
