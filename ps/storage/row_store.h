#ifndef TANDEM_PS_STORAGE_ROW_STORE_H_
#define TANDEM_PS_STORAGE_ROW_STORE_H_

// The rows of one bucket and the index that finds them.
//
// Rows lie in slabs from the table's arena, cut into chunks of 2^k rows (about 16 KiB); slot s is row s mod
// 2^k of chunk s / 2^k. Rows move only while their bucket is within its first chunk, which is filled by
// doubling so that a bucket of a few rows is small, and in Compact. A bucket grows by an eighth, at most 1
// MiB, at a time. Slots of erased rows are used again before new ones are.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "ps/storage/arena.h"
#include "ps/storage/row_index.h"
#include "ps/storage/row_layout.h"

namespace tandem::ps {

// From a slot to a row. A copy of its own of what the layout says, for loops that must not read it again and
// again.
class RowAddress {
 public:
  explicit RowAddress(const RowLayout& layout)
      : shift_(layout.chunk_shift), mask_((uint32_t{1} << layout.chunk_shift) - 1), stride_(layout.stride) {}
  char* Of(char* const* chunks, uint32_t slot) const {
    return chunks[slot >> shift_] + size_t{slot & mask_} * stride_;
  }

 private:
  const uint32_t shift_;
  const uint32_t mask_;
  const size_t stride_;
};

// Not thread-safe: its bucket's lock guards it; const methods may run at the same time. `layout` and `arena`
// must outlive it.
class RowStore {
 public:
  using Cell = RowIndex::Cell;

  RowStore(const RowLayout* layout, Arena* arena) : layout_(layout), arena_(arena), index_(arena) {}

  // Lookups: see RowIndex.
  const RowIndex& index() const { return index_; }
  RowIndex& index() { return index_; }
  char* RowAt(uint32_t slot) const { return RowAddress(*layout_).Of(chunks(), slot); }
  char* const* chunks() const { return chunks_.data(); }
  // The row of `id`, or nullptr.
  char* Find(uint64_t id) const {
    const Cell* const cell = index_.Find(id);
    return cell == nullptr ? nullptr : RowAt(cell->slot());
  }

  // Adds a row for `id`, which has none, its bytes unspecified but for a count of 0. May move the bucket's
  // rows and cells.
  char* Insert(uint64_t id, uint64_t hash, uint32_t version);
  // Removes the row of `id`, which has one. May move the bucket's cells.
  void Erase(uint64_t id);
  // Moves rows from the bucket's last chunks into free slots and gives back the memory that is then unused.
  // For after many were erased: it looks at every cell.
  void Compact();

  void ForEach(absl::FunctionRef<void(const Cell& cell, const char* row)> visit) const;
  void Clear();

  uint32_t size() const { return index_.size(); }
  uint32_t free_slots() const { return free_count_; }  // of erased rows
  // Beside what the arena counts.
  size_t own_bytes() const;

 private:
  void GrowRows();
  uint32_t TakeSlot();

  const RowLayout* const layout_;
  Arena* const arena_;
  RowIndex index_;
  uint32_t used_ = 0;      // slots ever given out
  uint32_t capacity_ = 0;  // slots there is room for
  uint32_t free_ = 0;  // slot + 1 of the first free one; each holds that of the next in its first four bytes
  uint32_t free_count_ = 0;
  std::vector<char*> chunks_;
  std::vector<Arena::Block> slabs_;  // the first: the first chunk alone
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_STORE_H_
