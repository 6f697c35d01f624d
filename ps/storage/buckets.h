// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_BUCKETS_H_
#define TANDEM_PS_STORAGE_BUCKETS_H_

// Buckets holds the rows of one table that are in memory, and the locks that guard them. The other classes of
// this folder operate on it:
//
//   RowGatherer   reads rows
//   RowCreator    creates rows
//   RowUpdater    applies gradients to rows
//   RowEvictor    selects rows that leave memory and erases them
//   RowSpiller    moves rows between memory and disk
//
// Locks. Bucket b is guarded by lock b mod num_locks(), which is a reader-writer lock. A thread that holds
// several locks must take them in ascending order, so that no two calls wait for each other. Functions that
// require a bucket's lock say so; "exclusively" means a writer's lock.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/longest_time.h"
#include "ps/storage/fair_lock.h"
#include "ps/storage/lookup.h"
#include "ps/storage/row_cut.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/rows/row_index.h"
#include "ps/storage/rows/row_layout.h"
#include "ps/storage/rows/row_pool.h"
#include "ps/storage/rows/row_store.h"
#include "ps/storage/table_storage.h"

namespace tandem::ps {

// The rows of one table in memory, their indexes and their locks. Thread-safe, except for functions that
// require a lock.
class Buckets {
 public:
  using Cell = RowIndex::Cell;
  static constexpr uint32_t kMaxLocks = 32;
  static constexpr uint32_t kNoQuota = ~uint32_t{0};

  // A row as it is stored.
  struct StoredRow {
    uint64_t id;
    const char* row;
    uint32_t version;
  };

  // Requires a `num_buckets` that is a power of two. `byte_budget` bounds the memory of rows and indexes; 0
  // means that there is no bound.
  Buckets(const RowLayout& layout, uint32_t num_buckets, uint64_t byte_budget);

  const RowLayout& layout() const { return layout_; }
  uint32_t num_buckets() const { return bucket_mask_ + 1; }
  uint32_t num_locks() const { return lock_mask_ + 1; }
  // The number of rows that a bucket may hold after an update, or kNoQuota.
  uint32_t quota() const { return quota_; }

  uint32_t BucketOfHash(uint64_t hash) const { return static_cast<uint32_t>(hash >> 32) & bucket_mask_; }
  uint32_t LockOfHash(uint64_t hash) const { return static_cast<uint32_t>(hash >> 32) & lock_mask_; }
  uint32_t LockNumberOfBucket(uint32_t bucket) const { return bucket & lock_mask_; }
  FairLock& lock(uint32_t number) const { return locks_[number]; }
  FairLock& LockOfBucket(uint32_t bucket) const { return locks_[bucket & lock_mask_]; }

  // The rows of a bucket, which its lock guards.
  RowStore& store(uint32_t bucket) { return stores_[bucket]; }
  const RowStore& store(uint32_t bucket) const { return stores_[bucket]; }
  // The rows of the moment that a checkpoint is of, while it is written.
  RowCut& cut() { return cut_; }
  const RowCut& cut() const { return cut_; }
  // Keeps the row of `id`, or that it has none, before it changes (RowCut::Keep). Requires the bucket's lock,
  // exclusively.
  void KeepRow(uint32_t bucket, uint64_t id);
  // The indexes and rows of all buckets, for lookups of many ids.
  Indexes indexes() const { return {heads_.data(), bucket_mask_}; }
  RowAddress row_address() const { return pool_.address(); }

  // Adds a row for `id`, which must have none; see RowStore::Insert. Requires the bucket's lock, exclusively.
  char* AddRow(RowStore* store, uint64_t id, uint64_t hash, uint32_t version) {
    num_rows_.fetch_add(1, std::memory_order_relaxed);
    return store->Insert(id, hash, version);
  }
  // Subtracts rows that the caller has erased from a store.
  void NoteErased(uint64_t rows) { num_rows_.fetch_sub(rows, std::memory_order_relaxed); }
  // Compacts a bucket and releases memory if more slots are free than used. Requires its lock, exclusively.
  void CompactIfSparse(RowStore* store) {
    if (store->free_slots() > store->size()) store->Compact();
  }
  // Removes all rows of a bucket. Requires its lock, exclusively.
  void ClearBucket(uint32_t bucket);

  // Gets the memory for `rows` new rows ready, so that it is not cleared while a lock is held. Requires no
  // lock.
  void PrepareSlots(uint32_t rows) { pool_.Prepare(rows); }
  // Allocates memory for those of the listed indexes that are about to grow, and empties the list. Requires
  // no lock.
  void PrepareGrowth(std::vector<uint32_t>* buckets);

  // The following functions convert rows to and from the form of TableStorage::VisitBucket: embedding floats,
  // then the optimizer state, layout().row_floats() in all.
  //
  // Returns the rows of a bucket in ascending order of id. Requires its lock while the rows are used.
  std::vector<StoredRow> SortedRows(uint32_t bucket, uint64_t first_id = 0, size_t limit = SIZE_MAX) const;
  // As SortedRows, but returns only the rows whose version is `since` or later, all of them. Versions are
  // modulo 2^32.
  std::vector<StoredRow> SortedChanges(uint32_t bucket, uint32_t since, uint64_t first_id = 0) const;
  static bool ChangedSince(uint32_t version, uint32_t since) {
    return static_cast<int32_t>(version - since) >= 0;
  }
  // Requires the row's lock.
  void ReadRow(const char* row, float* floats) const;
  // Creates or overwrites a row. Requires its lock, exclusively.
  void PutRow(uint32_t bucket, uint64_t id, uint64_t hash, const float* floats, const RowHistory& history);

  // The number of rows in memory.
  uint64_t num_rows() const { return num_rows_.load(std::memory_order_relaxed); }
  // The memory of a bucket that shared_bytes() does not count. Requires its lock.
  size_t BucketBytes(uint32_t bucket) const {
    return sizeof(RowStore) + sizeof(RowIndex::Head) + stores_[bucket].own_bytes();
  }
  // The memory of the arena, the pool and the locks.
  size_t shared_bytes() const { return arena_.bytes() + pool_.bytes() + num_locks() * sizeof(FairLock); }
  // The longest time that a lock was held exclusively.
  LongestTime& longest_pause() { return longest_pause_; }
  const LongestTime& longest_pause() const { return longest_pause_; }

  // The table's clock: the number of updates begun so far. The version of a row is the low half of the clock.
  uint64_t clock() const { return clock_.load(std::memory_order_relaxed); }
  void SetClock(uint64_t clock) { clock_.store(clock, std::memory_order_relaxed); }
  // Advances the clock by one and returns it.
  uint64_t AdvanceClock() { return clock_.fetch_add(1, std::memory_order_relaxed) + 1; }

 private:
  const RowLayout layout_;
  const uint32_t quota_;
  const uint32_t bucket_mask_;
  const uint32_t lock_mask_;
  // The arena, the pool and the heads must outlive the stores, so they come first.
  Arena arena_;
  RowPool pool_;
  std::vector<RowIndex::Head> heads_;  // each guarded by its bucket's lock
  std::vector<RowStore> stores_;       // each guarded by its lock
  const std::unique_ptr<FairLock[]> locks_;
  RowCut cut_;  // each bucket's part is guarded by its lock
  // On a cache line of their own: reads use the members above all the time, and updates write these.
  alignas(64) std::atomic<uint64_t> num_rows_{0};
  std::atomic<uint64_t> clock_{0};
  LongestTime longest_pause_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_BUCKETS_H_
