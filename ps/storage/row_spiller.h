// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_SPILLER_H_
#define TANDEM_PS_STORAGE_ROW_SPILLER_H_

// RowSpiller moves rows between memory and a cold tier (ps/storage/spill/cold_tier.h), which keeps the rows
// that exceed the table's byte budget. Memory acts as a cache of the tier. The row of an id is
//
//   in memory   if its bucket has it; an entry of the id in the tier is then superseded;
//   cold        if it is not in memory and the tier has an entry of the id, which is the row;
//   absent      otherwise.
//
// Each lock of Buckets has a tier lock, which guards the moves of its rows. A tier lock is taken before the
// lock. Calls that find all their rows in memory take none.
//
// Rows leave memory only with their tier lock held exclusively (SpillBucket):
//
//   1. The rows are selected and copied with the lock held shared.
//   2. The copies are put into the tier with no lock held.
//   3. With the lock held exclusively, those rows are erased that still equal their copies.
//
// A row that was updated meanwhile stays in memory, and its entry in the tier is superseded. A put that fails
// changes nothing: the rows stay in memory, beyond the budget.
//
// Rows come back to memory, and new rows are created, with their tier lock held shared, from the lookup in
// the tier until they are in memory. No row leaves memory meanwhile, so the result of the lookup stays true.
// If two calls bring the same row back, the second finds it in memory, with all changes made since. An id
// that the tier does not have has no row, unless it is in memory by now.
//
// An update of rows that are not in memory (ApplyAbsent) brings them back, asks admission for those that are
// absent, and applies gradients, all under one hold of tier lock and lock. No row can leave in between.
//
// Reading does not change the tier. An entry is superseded when its row comes back, and overwritten when the
// row leaves again. Nothing is ever deleted, so no failed deletion can bring an old row back.
//
// The number of entries of a bucket that are not superseded is counted. A checkpoint that finds another
// number fails.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "ps/storage/admission_filter.h"
#include "ps/storage/buckets.h"
#include "ps/storage/grouping.h"
#include "ps/storage/recent_rows.h"
#include "ps/storage/row_creator.h"
#include "ps/storage/row_evictor.h"
#include "ps/storage/row_updater.h"
#include "ps/storage/scratch.h"
#include "ps/storage/spill/cold_tier.h"
#include "ps/storage/spill/seen_filter.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// Thread-safe. Calls take tier locks and locks, so the caller must hold neither, and block on the disk. The
// objects that the constructor is given must outlive the spiller.
class RowSpiller {
 public:
  // `table` is used in messages. Requires an empty `tier`.
  RowSpiller(std::string table, Buckets* buckets, std::unique_ptr<ColdTier> tier, AdmissionFilter* admission,
             RowCreator* creator, RowUpdater* updater, RowEvictor* evictor, ScratchPool* scratch_pool);

  // Returns the error of the first update that was lost, if there is one. Then the table has a gap and is
  // unusable.
  absl::Status CheckWhole() const {
    return damaged_.load(std::memory_order_acquire) ? Damage(absl::OkStatus()) : absl::OkStatus();
  }

  // Completes RowGatherer::Gather for ids[missing], which were not in memory.
  absl::Status FillMissing(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, bool create,
                           float* out);
  // Completes RowGatherer::GatherNewer for ids[doubtful], which were not in memory. Clears the bits of those
  // whose copies are still current.
  absl::Status ClearCurrent(absl::Span<const uint64_t> ids, const uint32_t* cached,
                            absl::Span<const uint32_t> doubtful, uint8_t* sent);
  // Completes RowUpdater::Apply for scratch->absent, which it empties. Returns the number of items without a
  // row. After an error the table is damaged: see CheckWhole.
  absl::StatusOr<uint64_t> ApplyAbsent(const UpdateArguments& update, Scratch* scratch);
  // Spills rows from those of the listed buckets that hold more than `most` rows, and empties the list. `now`
  // is the low 32 bits of the table's clock. If the disk fails, the rows stay in memory; for a second after
  // that, calls do nothing.
  void SpillOver(std::vector<uint32_t>* buckets, uint32_t now, uint64_t most);

  // Completes TableStorage::ReadRows for ids[missing], which were not in memory: reads those that exist by
  // now or are cold, and sets their `exists`. Does not change where rows are.
  absl::Status ReadRows(absl::Span<const uint64_t> ids, absl::Span<const uint32_t> missing, float* out,
                        uint8_t* exists);

  // Implement TableStorage::VisitRows and TableStorage::Restore.
  absl::StatusOr<bool> VisitRows(uint32_t bucket, uint64_t first_id, size_t limit,
                                 TableStorage::RowVisitor visit);
  // Implements TableStorage::VisitChanges: visits the rows whose version is `since` or later.
  absl::Status VisitChanges(uint32_t bucket, uint32_t since, TableStorage::RowVisitor visit);
  // A row that exists keeps its count of updates if `keep_count` is true.
  absl::Status Restore(uint64_t id, const float* floats, RowHistory history, bool keep_count = false);
  // Removes all rows: calls clear_bucket(bucket) with each bucket's lock held exclusively, and clears the
  // tier.
  void Clear(absl::FunctionRef<void(uint32_t bucket)> clear_bucket);

  // The number of cold rows.
  uint64_t cold_rows() const { return cold_rows_.load(std::memory_order_relaxed); }
  // Sets the fields of tables that spill.
  void AddStatistics(StorageStatistics* statistics) const;
  // The memory of a bucket's bookkeeping. Requires its lock.
  size_t BucketBytes(uint32_t bucket) const;
  // The memory of the spiller itself and its locks.
  size_t own_bytes() const;

 private:
  struct alignas(64) TierLock {
    absl::Mutex mutex;
  };
  // The bookkeeping of a bucket.
  struct BucketState {
    // The number of cold rows. Grows only with the tier lock held exclusively, shrinks with the lock held
    // exclusively.
    std::atomic<uint32_t> cold{0};
    // The ids of all rows that have ever left memory. Changes only with both locks held exclusively.
    SeenFilter left{0};
    // Rows that came to memory recently. Guarded by the lock.
    RecentRows recent;
    // The latest version that a row had when it left memory, if one ever did. Guarded by the lock.
    uint32_t newest_left = 0;
    bool any_left = false;
  };

  absl::Mutex& TierLockOf(uint32_t bucket) const {
    return tier_locks_[buckets_->LockNumberOfBucket(bucket)].mutex;
  }
  // Records the first error, if `cause` is one, and returns it.
  absl::Status Damage(const absl::Status& cause) const;
  void SortByLock(std::vector<Grouping::Item>* items) const;
  // Calls f(run) for runs of items, which must be sorted by lock, with their tier locks held shared. All
  // items of a lock are in one run.
  template <class F>
  absl::Status ForEachRun(absl::Span<const Grouping::Item> items, const F& f);
  // Calls f(begin, end) for the items of each lock of a run.
  template <class F>
  void ForEachLockOf(absl::Span<const Grouping::Item> run, const F& f) const;
  // Reads the cold rows of a run into `scratch`. Requires the run's tier locks.
  absl::Status ReadTier(absl::Span<const Grouping::Item> run, Scratch* scratch) const;
  // Returns the entry that ReadTier found for item i, [version: u32 | row], or nullptr.
  const char* Cold(const Scratch& scratch, size_t i) const;
  // Puts a cold row into memory, which must not have it. Requires its tier lock and, exclusively, its lock.
  char* BringBack(const Grouping::Item& item, const char* cold);
  void NoteArrival(uint32_t bucket, uint64_t id);
  void SpillBucket(uint32_t bucket, uint32_t now, uint64_t most);
  void NoteLeft(uint32_t bucket, uint64_t id, uint32_t version);
  void NoteSpilled(const absl::Status& status);

  const std::string name_;
  Buckets* const buckets_;
  const std::unique_ptr<ColdTier> tier_;
  AdmissionFilter* const admission_;
  RowCreator* const creator_;
  RowUpdater* const updater_;
  RowEvictor* const evictor_;
  ScratchPool* const scratch_pool_;
  const size_t cold_row_bytes_;  // of a row in the tier: its version, then the row as in memory
  const std::unique_ptr<TierLock[]> tier_locks_;  // [buckets_->num_locks()]
  const std::unique_ptr<BucketState[]> states_;   // [buckets_->num_buckets()]
  std::atomic<uint64_t> cold_rows_{0};
  std::atomic<uint64_t> spill_reads_{0};
  std::atomic<uint64_t> spill_writes_{0};
  std::atomic<uint64_t> failed_spills_{0};
  // After a failure: the time of the next attempt, on the steady clock. 0: the last attempt succeeded.
  std::atomic<int64_t> next_spill_ns_{0};
  mutable std::atomic<bool> damaged_{false};
  mutable absl::Mutex damage_mutex_;
  mutable absl::Status damage_ ABSL_GUARDED_BY(damage_mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_SPILLER_H_
