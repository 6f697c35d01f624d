#ifndef TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_
#define TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_

// The inside of TableStorage. Reading is in gather.cc, updating in apply.cc, eviction in evict.cc, the way to
// disk and back in spill.cc, the rest in bucketed_storage.cc.
//
// Locks. Bucket b belongs to lock b mod kLocks. A read locks, shared, all locks that a run of its ids needs
// at once and then takes the ids in the order given, so that what it writes is written in sequence: with 256
// locks taken one after the other, sorting the ids by lock and writing in that order cost as much as reading
// the rows. When one of them is not free it does just that instead, and takes the busy ones last: else
// it would follow a writer from lock to lock until its whole update is done, and keep writers out of all
// locks meanwhile. A write sorts its ids by lock and takes one lock (or several small ones) at a time, so
// that writers meet only where their rows do; several threads may share the locks of one update among them.
// Always in ascending order, so that no two calls wait for each other.
//
// Rows on disk. A table with a cold tier (ps/tiers) keeps there what its byte budget has no room for; memory
// is a cache before it. The row of an id is
//   in memory  when its bucket has it; if the tier has an entry for the id, that entry is superseded;
//   cold       when it is not in memory, and the tier has an entry: that is the row;
//   nowhere    otherwise.
// Each lock has a door beside it, which guards the border to the disk; doors are taken before locks, and
// calls that find all their rows in memory pass none.
//   - Rows leave memory only under their door, held alone (SpillBucket): they are chosen and copied under the
//     lock, shared; the copies are put into the tier under no lock; then, under the lock alone, those rows
//     are erased that are still what was put. A row that was updated meanwhile just stays, and its entry is
//     superseded. A put that fails changes nothing: the rows stay, beyond the budget.
//   - Rows come back, and new rows are made, under their door, shared, from the look into the tier until they
//     are in memory. Nothing leaves memory meanwhile, so what the tier said stays true: when two calls bring
//     the same row back, the second finds it in memory, with what was done to it since; and an id of which
//     the tier knows nothing has no row, unless it is in memory by now.
//   - An update of rows that are not in memory (ApplyAbsent) brings them back, asks admission for those that
//     are nowhere, and applies, all in one holding of door and lock: no row can leave between.
//   - Reading the tier changes nothing in it. An entry is superseded when its row comes back and overwritten
//     when the row leaves again: nothing is ever deleted, so no deletion can fail and bring an old row back.
// What the tier holds of a bucket beyond superseded entries is counted; a checkpoint that finds another
// number fails.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/admission.h"
#include "ps/policies/eviction.h"
#include "ps/policies/initializer.h"
#include "ps/shard_map.h"
#include "ps/storage/fair_lock.h"
#include "ps/storage/gather_rows.h"
#include "ps/storage/grouping.h"
#include "ps/storage/lookup.h"
#include "ps/storage/row_codec.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/rows/row_layout.h"
#include "ps/storage/rows/row_pool.h"
#include "ps/storage/rows/row_store.h"
#include "ps/storage/spill/cold_tier.h"
#include "ps/storage/spill/seen_filter.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

class BucketedStorage : public TableStorage {
 public:
  struct Policies {
    std::unique_ptr<Optimizer> optimizer;
    std::unique_ptr<Initializer> initializer;
    std::unique_ptr<Admission> admission;
    std::unique_ptr<Eviction> eviction;  // may be nullptr
    std::unique_ptr<ColdTier> tier;      // nullptr: rows that eviction wants gone are forgotten
  };
  BucketedStorage(const v1::TableConfig& config, uint32_t num_buckets, Policies policies);

  void CreateDenseRows(absl::FunctionRef<bool(uint32_t)> owns);

  absl::Status Gather(absl::Span<const uint64_t> ids, bool create, float* out) override {
    return GatherAs(RowFormat::Out::kFloats, ids, create, out);
  }
  absl::Status GatherAround(absl::Span<const uint64_t> ids, bool create, float* out) override {
    return GatherAs(RowFormat::Out::kFloatsAround, ids, create, out);
  }
  DType row_type() const override { return layout_.dtype; }
  absl::Status GatherStored(absl::Span<const uint64_t> ids, bool create, char* out) override;
  absl::StatusOr<size_t> GatherNewer(absl::Span<const uint64_t> ids, const uint32_t* cached, uint64_t max_age,
                                     bool create, float* out, uint8_t* sent) override;
  absl::StatusOr<uint64_t> Apply(absl::Span<const uint64_t> ids, const float* gradients,
                                 const ApplyOptions& options) override;
  uint64_t rows() const override {
    return num_rows_.load(std::memory_order_relaxed) + cold_rows_.load(std::memory_order_relaxed);
  }
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

  struct alignas(64) Door {
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
    // Tables with a tier: items whose rows are not in memory, and buckets that have too many. (FillMissing
    // notes those here whose index is about to grow.)
    std::vector<Grouping::Item> absent;
    std::vector<uint32_t> over;
    // What the tier was asked: of each item its key, or kNotAsked; of each key whether it has a row, and
    // which.
    std::vector<uint32_t> cold_at;
    std::vector<ColdTier::Key> cold_keys;
    std::vector<uint8_t> cold_found;
    std::vector<char> cold_rows;
    size_t bytes() const;
  };
  // What a bucket of a table with a tier has beside its rows.
  struct Border {
    std::atomic<uint32_t> cold{0};  // its cold rows; grows under the door alone, shrinks under the lock alone
    // The ids of all rows that have ever left memory: changes under door and lock alone.
    SeenFilter left{0};
    // Ids whose rows came to memory lately, which eviction spares: a row that a pull has brought must still
    // be there when its push comes, or each would read it. Guarded by the lock.
    absl::flat_hash_set<uint64_t> young, younger;
    uint32_t younger_since = 0;  // on the table's clock
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
  FairLock& LockOfBucket(uint32_t bucket) const { return locks_[bucket & lock_mask_]; }
  absl::Mutex& DoorOfBucket(uint32_t bucket) const { return doors_[bucket & lock_mask_].mutex; }

  std::unique_ptr<Scratch> TakeScratch();
  void ReleaseScratch(std::unique_ptr<Scratch> scratch);

  // Writes a row to memory, made if need be; under its lock.
  void PutRow(uint32_t bucket, uint64_t id, uint64_t hash, const float* floats, const RowHistory& history);
  Indexes indexes() const { return {heads_.data(), bucket_mask_}; }

  // gather.cc
  // Bit l: reading `ids` takes lock l.
  uint32_t LocksOf(absl::Span<const uint64_t> ids) const;
  void LockShared(uint32_t locks) const;
  // All of them, without waiting, or none.
  bool TryLockShared(uint32_t locks) const;
  void UnlockShared(uint32_t locks) const;
  absl::Status GatherAs(RowFormat::Out as, absl::Span<const uint64_t> ids, bool create, float* out);
  // What of `ids` is in memory goes to `out`, and where in the call the others are to `missing`, in order.
  void GatherPresent(const RowFormat& form, absl::Span<const uint64_t> ids, char* out,
                     std::vector<uint32_t>* missing) const;
  // The same for a run of ids some of whose locks are taken: one lock at a time, those that are free first.
  // The ids are those from `first` on.
  void GatherLockByLock(const RowFormat& form, absl::Span<const uint64_t> ids, char* out, uint32_t first,
                        std::vector<uint32_t>* missing) const;
  void FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                   float* out);
  // Gets memory for indexes that are about to grow, under no lock; empties `buckets`.
  void PrepareGrowth(std::vector<uint32_t>* buckets);
  // The row's initial values, as they read once they are stored.
  void InitialValues(uint64_t id, float* values) const;
  // Writes initial values and state to a new row.
  void InitRow(char* row, const float* values) const;
  char* AddRow(RowStore* store, uint64_t id, uint64_t hash, uint32_t version);

  // apply.cc
  // What those who share an update have in common.
  struct Update;
  // Updates blocks of it until none is left.
  void RunBlocks(Update* update, Scratch* scratch);
  // Updates the rows of (locked) items. Returns how many have none.
  uint64_t UpdateItems(absl::Span<const Grouping::Item> items, uint32_t now, const Update& update,
                       Scratch* scratch);
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
  RowStats StatsOf(const RowStore& store, const Cell& cell, uint32_t now, std::vector<float>* floats) const;
  // The ids of the rows of least worth beyond a sixteenth less than the quota.
  std::vector<uint64_t> LowestPriority(uint32_t bucket, uint32_t now) const;
  void EvictToQuota(uint32_t bucket, uint32_t now);
  void EraseExpired(RowStore* store, uint32_t now);
  void EraseRows(RowStore* store, absl::Span<const uint64_t> ids);

  // spill.cc; tables with a tier only. Under no lock unless they say so.
  // The error of the first update that was lost.
  absl::Status CheckWhole() const {
    return damaged_.load(std::memory_order_acquire) ? Damage(absl::OkStatus()) : absl::OkStatus();
  }
  absl::Status Damage(const absl::Status& cause) const;
  // Gather for ids[missing], which were not in memory.
  absl::Status FillFromTier(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                            float* out);
  // GatherNewer for ids[doubtful], which were not in memory: takes the bits of those back whose copies serve.
  absl::Status LookAgain(absl::Span<const uint64_t> ids, const uint32_t* cached,
                         absl::Span<const uint32_t> doubtful, uint8_t* sent);
  // Apply for scratch->absent. Returns how many items have no row.
  absl::StatusOr<uint64_t> ApplyAbsent(const float* gradients, const ApplyOptions& options, uint64_t time,
                                       float learning_rate_factor, Scratch* scratch);
  absl::Status RestoreOverTier(uint64_t id, const float* floats, const RowHistory& history);
  void SortByLock(std::vector<Grouping::Item>* items) const;
  // Calls f(run) for runs of items, which are sorted by lock, with their doors held, shared; all items of a
  // lock are in one run.
  template <class F>
  absl::Status ForEachRunBehindDoors(absl::Span<const Grouping::Item> items, const F& f);
  // Calls f(begin, end) for the items of each lock of a run.
  template <class F>
  void ForEachLockOf(absl::Span<const Grouping::Item> run, const F& f) const;
  // Asks the tier for the rows of a run; under its doors.
  absl::Status AskTier(absl::Span<const Grouping::Item> run, Scratch* scratch) const;
  // What it said about item i: [version: u32 | row], or nullptr.
  const char* Cold(const Scratch& scratch, size_t i) const;
  // Puts a cold row into memory, which does not have it; under its door and lock.
  char* BringBack(const Grouping::Item& item, const char* cold);
  void NoteArrival(uint32_t bucket, uint64_t id);
  // Spills from those of the buckets that hold more than `most` rows.
  void SpillOver(std::vector<uint32_t>* buckets, uint32_t now, uint64_t most);
  void SpillBucket(uint32_t bucket, uint32_t now, uint64_t most);
  void NoteSpilled(const absl::Status& status);

  const std::string name_;
  const size_t dim_;
  const uint64_t seed_;
  const bool dense_;
  const uint64_t dense_rows_;  // DENSE: ids are [0, dense_rows_)
  const bool stochastic_rounding_;
  const std::unique_ptr<Optimizer> optimizer_;
  const std::unique_ptr<Initializer> initializer_;
  const std::unique_ptr<Admission> admission_;
  const std::unique_ptr<Eviction> eviction_;
  const std::unique_ptr<ColdTier> tier_;
  const RowLayout layout_;
  const size_t cold_row_bytes_;  // of a row in the tier: its version, then as it lies in memory
  const uint32_t bucket_quota_;  // rows a bucket may hold after an update
  const uint32_t bucket_mask_;
  const uint32_t lock_mask_;
  // What the buckets' memory and heads are of outlives them.
  Arena arena_;
  RowPool pool_;
  std::vector<RowIndex::Head> heads_;          // each guarded by its bucket's lock
  std::vector<RowStore> buckets_;              // each guarded by its lock
  std::vector<std::vector<uint8_t>> filters_;  // admission counters, one a bucket or none; likewise guarded
  const std::unique_ptr<FairLock[]> locks_;
  const std::unique_ptr<Door[]> doors_;      // as many
  const std::unique_ptr<Border[]> borders_;  // one a bucket, in tables with a tier
  std::atomic<uint64_t> num_rows_{0};
  std::atomic<uint64_t> clock_{0};
  std::atomic<uint64_t> admitted_{0};
  std::atomic<uint64_t> refused_{0};
  std::atomic<uint64_t> evicted_{0};
  std::atomic<int64_t> longest_pause_ns_{0};
  std::atomic<uint64_t> cold_rows_{0};
  std::atomic<uint64_t> spill_reads_{0};
  std::atomic<uint64_t> spill_writes_{0};
  std::atomic<uint64_t> failed_spills_{0};
  std::atomic<int64_t> next_spill_ns_{0};  // after a failure, on the steady clock
  mutable std::atomic<bool> damaged_{false};
  mutable absl::Mutex damage_mutex_;
  mutable absl::Status damage_ ABSL_GUARDED_BY(damage_mutex_);

  // Scratch that is not in use. At most as many as calls ever ran at once.
  mutable absl::Mutex scratch_mutex_;
  std::vector<std::unique_ptr<Scratch>> idle_scratch_ ABSL_GUARDED_BY(scratch_mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_BUCKETED_STORAGE_H_
