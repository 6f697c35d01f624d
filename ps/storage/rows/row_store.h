#ifndef TANDEM_PS_STORAGE_ROWS_ROW_STORE_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_STORE_H_

// The rows of one bucket and the index that finds them.
//
// A row lies in a slot of the table's pool (row_pool.h) and moves only in Compact. A bucket takes slots by
// runs of a sixteenth of what it has, at most 1 MiB, at a time. Slots of erased rows are used again before
// new ones are.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/rows/row_index.h"
#include "ps/storage/rows/row_layout.h"
#include "ps/storage/rows/row_pool.h"

namespace tandem::ps {

// Not thread-safe: its bucket's lock guards it; const methods may run at the same time. `layout`, `pool`,
// `arena` (for the index) and `head` (as it was made) must outlive it.
class RowStore {
 public:
  using Cell = RowIndex::Cell;

  RowStore(const RowLayout* layout, RowPool* pool, Arena* arena, RowIndex::Head* head)
      : layout_(layout), pool_(pool), index_(arena, head) {}
  RowStore(RowStore&&) = default;
  ~RowStore() { ReleaseRuns(); }

  // Lookups: see RowIndex.
  const RowIndex& index() const { return index_; }
  RowIndex& index() { return index_; }
  char* RowAt(uint32_t slot) const { return pool_->RowAt(slot); }
  // The row of `id`, or nullptr.
  char* Find(uint64_t id) const {
    const Cell* const cell = index_.Find(id);
    return cell == nullptr ? nullptr : RowAt(cell->slot);
  }

  // Adds a row for `id`, which has none, its bytes unspecified but for a count of 0. May move the bucket's
  // rows and cells.
  char* Insert(uint64_t id, uint64_t hash, uint32_t version);
  // Removes the row of `id`, which has one. May move the bucket's cells.
  void Erase(uint64_t id);
  // Moves rows from the bucket's smallest runs into free slots of the others and gives back the runs that are
  // then empty. For after many were erased: it looks at every cell.
  void Compact();

  void ForEach(absl::FunctionRef<void(const Cell& cell, const char* row)> visit) const;
  void Clear();

  uint32_t size() const { return index_.size(); }
  uint32_t free_slots() const { return free_count_; }  // of erased rows
  // Beside what pool and arena count.
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
  uint32_t next_ = 0;  // slots [next_, end_), of the last run, have not been used yet
  uint32_t end_ = 0;
  uint32_t free_ = kNoSlot;  // the first free one; each holds the next in its first four bytes
  uint32_t free_count_ = 0;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ROW_STORE_H_
