// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROWS_ROW_STORE_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_STORE_H_

// RowStore holds the rows of one bucket and the index that finds them.
//
// A row is in a slot of the table's pool (row_pool.h) and moves only in Compact. A bucket takes slots in runs
// of a sixteenth of its size, at most 1 MiB at a time. Slots of erased rows are reused before new ones are
// taken.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/rows/row_index.h"
#include "ps/storage/rows/row_layout.h"
#include "ps/storage/rows/row_pool.h"

namespace tandem::ps {

// Not thread-safe, but const methods may run concurrently; the bucket's lock guards it. Requires a
// default-constructed `head`. `layout`, `pool`, `arena` (which allocates the index) and `head` must outlive
// the store.
class RowStore {
 public:
  using Cell = RowIndex::Cell;

  RowStore(const RowLayout* layout, RowPool* pool, Arena* arena, RowIndex::Head* head)
      : layout_(layout), pool_(pool), index_(arena, head) {}
  RowStore(RowStore&&) = default;
  ~RowStore() { ReleaseRuns(); }

  // The index, for lookups; see RowIndex.
  const RowIndex& index() const { return index_; }
  RowIndex& index() { return index_; }
  char* RowAt(uint32_t slot) const { return pool_->RowAt(slot); }
  // Returns the row of `id`, or nullptr.
  char* Find(uint64_t id) const {
    const Cell* const cell = index_.Find(id);
    return cell == nullptr ? nullptr : RowAt(cell->slot);
  }

  // Adds a row for `id`, which must have none, and returns it. Its bytes are unspecified, except for a count
  // of 0. May move the bucket's cells.
  char* Insert(uint64_t id, uint64_t hash, uint32_t version);
  // Removes the row of `id`, which must have one. May move the bucket's cells.
  void Erase(uint64_t id);
  // Moves rows from the bucket's smallest runs into free slots of the others and releases the runs that are
  // then empty. Visits every cell, so it should follow the removal of many rows.
  void Compact();

  void ForEach(absl::FunctionRef<void(const Cell& cell, const char* row)> visit) const;
  void Clear();

  uint32_t size() const { return index_.size(); }
  uint32_t free_slots() const { return free_count_; }  // slots of erased rows
  // Returns the memory held in addition to what the pool and the arena count.
  size_t own_bytes() const;

 private:
  void TakeRun();
  uint32_t TakeSlot();
  void FreeSlot(uint32_t slot);
  void ReleaseRuns();

  const RowLayout* const layout_;
  RowPool* const pool_;
  RowIndex index_;
  std::vector<RowPool::Run> runs_;
  uint32_t next_ = 0;  // slots [next_, end_) of the last run have not been used yet
  uint32_t end_ = 0;
  uint32_t free_ = kNoSlot;  // the first free slot; each stores the next one in its first four bytes
  uint32_t free_count_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ROW_STORE_H_
