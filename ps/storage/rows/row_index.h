// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROWS_ROW_INDEX_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_INDEX_H_

// RowIndex finds the rows of one bucket: a hash table from id to slot, with open addressing.
//
// A cell is 16 bytes,
//
//   [ id: u64 | slot: u32, 0 = empty | version: u32 ]
//
// and a cache line holds four cells. A lookup begins at the line given by the low half of the id's hash (the
// high half chose the bucket) and probes linearly. The id is stored in the index and not with the row.
// Therefore a lookup usually touches one line of the index and then only the row's own payload, an absent id
// touches no row, and eviction by age compares versions without touching rows.
//
// The index grows by a quarter when it is 3/5 full, incrementally: the old and the new table exist side by
// side and each insert moves a few lines, so that no call pays for all. Lines of the old table map
// monotonically to lines of the new one. Hence both are walked front to back, and one comparison decides
// which of the two holds an id. The system clears new memory when it is first touched (4 ms for a huge page),
// so memory for growth is best allocated in advance and with no lock held: see WantedBytes and TakeSpare.
//
// A lookup finds its line through the index's head, 32 bytes that the owner stores next to the heads of the
// table's other buckets, so that all heads stay in the first-level cache (lookup.h).

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/random.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/rows/row_pool.h"

namespace tandem::ps {

// The half of an id's hash that chooses its line.
inline uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash); }

// Not thread-safe, but const methods may run concurrently.
class RowIndex {
 public:
  struct Cell {
    uint64_t id;
    uint32_t slot;     // kNoSlot: the cell is empty
    uint32_t version;  // the low 32 bits of the table's clock at the row's last update
  };
  static constexpr uint32_t kLineCells = 4;

  // The location of the lines. Ids whose tag lies in [moved_from, moved_from + moved_tags_less_1], modulo
  // 2^32, have their cell in cells[1] (the new table while growing), all others in cells[0].
  struct alignas(32) Head {
    const Cell* cells[2] = {EmptyLine(), EmptyLine()};
    uint32_t lines[2] = {1, 1};
    uint32_t moved_from = 0;
    uint32_t moved_tags_less_1 = ~uint32_t{0};

    const Cell* Line(uint64_t hash) const {
      const uint32_t tag = TagOf(hash);
      const uint32_t side = SideOf(tag);
      return cells[side] + size_t{kLineCells} * Home(tag, lines[side]);
    }
    uint32_t SideOf(uint32_t tag) const { return tag - moved_from <= moved_tags_less_1 ? 1 : 0; }
    // Returns the line after `line`, where the probe for an id with this hash continues.
    const Cell* Next(const Cell* line, uint64_t hash) const {
      const uint32_t side = SideOf(TagOf(hash));
      const Cell* const next = line + kLineCells;
      return next == cells[side] + size_t{kLineCells} * lines[side] ? cells[side] : next;
    }
    // Returns the id's cell in the lines after `line`, or nullptr. Requires that `line` is full and that it
    // and the lines before it have been searched.
    const Cell* FindBeyond(const Cell* line, uint64_t id, uint64_t hash) const;
  };

  // Requires a default-constructed `head`. `arena` and `head` must outlive the index.
  RowIndex(Arena* arena, Head* head) : arena_(arena), head_(head) {}

  // A lookup has two steps, so that a caller can take each step for many ids and overlap their cache misses:
  // Line returns the first line to search, which the caller prefetches; Find searches it.
  const Cell* Line(uint64_t hash) const { return head_->Line(hash); }
  // Returns the id's cell, or nullptr. Requires line == Line(hash), hash == Mix64(id), and that the index has
  // not changed between the two calls.
  const Cell* Find(const Cell* line, uint64_t id, uint64_t hash) const {
    const Cell* cell;
    return FindInLine(line, id, &cell) ? cell : head_->FindBeyond(line, id, hash);
  }
  // Returns true if the search ends with this line, and sets `cell` to the id's cell, or to nullptr if the id
  // has none.
  static bool FindInLine(const Cell* line, uint64_t id, const Cell** cell) {
    const uint32_t match = (line[0].id == id ? 1u : 0u) | (line[1].id == id ? 2u : 0u) |
                           (line[2].id == id ? 4u : 0u) | (line[3].id == id ? 8u : 0u);
    if (match != 0) {
      // An empty cell has id 0. Lines are filled from the front, so a full cell of id 0 is found before it.
      *cell = line + __builtin_ctz(match);
      if ((*cell)->slot == kNoSlot) *cell = nullptr;
      return true;
    }
    *cell = nullptr;
    return line[kLineCells - 1].slot == kNoSlot;
  }
  Cell* Find(const Cell* line, uint64_t id, uint64_t hash) {
    return const_cast<Cell*>(static_cast<const RowIndex*>(this)->Find(line, id, hash));
  }
  const Cell* Find(uint64_t id) const {
    const uint64_t hash = Mix64(id);
    return Find(Line(hash), id, hash);
  }
  Cell* Find(uint64_t id) { return const_cast<Cell*>(static_cast<const RowIndex*>(this)->Find(id)); }

  // Adds a cell for `id`, which must have none. May move cells.
  Cell* Insert(uint64_t id, uint64_t hash, uint32_t slot, uint32_t version);
  // Returns the bytes of memory that growing will soon need. Returns 0 if the index will not grow soon or has
  // the memory already.
  size_t WantedBytes() const;
  // Offers `memory`, which must be zeroed, for the next growth. Returns the memory that the index does not
  // need.
  Arena::Block TakeSpare(Arena::Block memory);
  // Removes the cell of `id`, which must have one. May move cells.
  void Erase(uint64_t id);
  // Moves to a smaller table if less than about a third of the cells is full. Visits every cell.
  void Shrink();
  void Clear();

  // Calls `visit` for every full cell, in no particular order. `visit` may change slots and versions.
  void ForEach(absl::FunctionRef<void(Cell& cell)> visit);
  void ForEach(absl::FunctionRef<void(const Cell& cell)> visit) const;

  uint32_t size() const { return size_; }

 private:
  struct Table {
    Cell* cells = EmptyLine();
    uint32_t lines = 1;
    Arena::Block memory;  // empty if `cells` is EmptyLine()
  };

  // The line of every index that has no memory yet; never written.
  static Cell* EmptyLine();
  static uint32_t Home(uint32_t tag, uint32_t lines) {
    return static_cast<uint32_t>((uint64_t{tag} * lines) >> 32);
  }
  // Returns true if the home line in old_ of an id with this tag has been moved to table_.
  bool Moved(uint32_t tag) const {
    const uint32_t home = Home(tag, old_.lines);
    return (home >= move_begin_ ? home - move_begin_ : home + old_.lines - move_begin_) < moved_lines_;
  }
  // Returns the first tag whose home is `line`. For the line after the last one that is 2^32, which wraps to
  // 0.
  static uint32_t FirstTag(uint32_t line, uint32_t lines) {
    return static_cast<uint32_t>(((uint64_t{line} << 32) + lines - 1) / lines);
  }
  void UpdateHead();
  static Cell* Place(Table& table, uint64_t id, uint64_t hash, uint32_t slot, uint32_t version);
  void GoOverTo(uint32_t lines);
  void MoveSome(uint32_t lines);

  Table table_;
  // The table that is being replaced; lines == 0 when the index is not growing. Its lines [move_begin_,
  // move_begin_ + moved_lines_), modulo old_.lines, have been moved to table_. The last moved line was not
  // full, so that no id of the moved lines has its cell in a later one.
  Table old_{.lines = 0};
  uint32_t move_begin_ = 0;
  uint32_t moved_lines_ = 0;
  uint32_t size_ = 0;
  Arena::Block spare_;
  Arena* const arena_;
  Head* const head_;
};
static_assert(sizeof(RowIndex::Cell) == 16);
static_assert(sizeof(RowIndex::Head) == 32);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ROW_INDEX_H_
