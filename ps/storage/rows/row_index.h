#ifndef TANDEM_PS_STORAGE_ROWS_ROW_INDEX_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_INDEX_H_

// Where the rows of one bucket are: open addressing from id to slot.
//
// A cell is 16 bytes [ id: u64 | slot: u32, 0 = empty | version: u32 ], four to a cache line. A lookup
// begins at the line that the low half of the id's hash says (the bucket came from the high half) and probes
// linearly. Because the id lies here and not beside the row, a lookup touches one line of the index most of
// the time and then nothing but the row's own payload; a row that is absent is not touched at all; and
// versions can be compared, for eviction by age, without touching rows.
//
// The index grows by a quarter when it is 3/5 full, and not in one go: old and new stand side by side, and
// each insert moves a few lines, so that no call pays for all. Lines map to lines monotonically, hence both
// are walked front to back, and one comparison tells in which of the two an id is. An id is looked up in
// exactly one of them. New memory, which the system clears when it is first touched (a huge page took four
// milliseconds), is best got before it is needed and under no lock: WantedBytes and TakeSpare.
//
// What a lookup needs to find the line is the index's head, 32 bytes that the owner keeps beside the heads of
// the table's other buckets, so that all of them stay in the first-level cache (lookup.h).

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/random.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/rows/row_pool.h"

namespace tandem::ps {

inline uint32_t TagOf(uint64_t hash) { return static_cast<uint32_t>(hash); }

// Not thread-safe: const methods may run at the same time.
class RowIndex {
 public:
  struct Cell {
    uint64_t id;
    uint32_t slot;     // kNoSlot: the cell is empty
    uint32_t version;  // of the row's last update: the low half of the table's clock
  };
  static constexpr uint32_t kLineCells = 4;

  // Where the lines are: an id whose tag is one of moved_tags_less_1 + 1 from moved_from on, going round, has
  // its cell in lines of cells[1], else of cells[0].
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
    // The line after `line`, where the probe for an id of this hash goes on.
    const Cell* Next(const Cell* line, uint64_t hash) const {
      const uint32_t side = SideOf(TagOf(hash));
      const Cell* const next = line + kLineCells;
      return next == cells[side] + size_t{kLineCells} * lines[side] ? cells[side] : next;
    }
    // The id's cell in the lines after `line`, which is full and has been searched, as have those before it;
    // or nullptr.
    const Cell* FindBeyond(const Cell* line, uint64_t id, uint64_t hash) const;
  };

  // `arena` and `head` (which is as it was made) must outlive it.
  RowIndex(Arena* arena, Head* head) : arena_(arena), head_(head) {}

  // Lookup in two steps, so that a caller can take many ids through each and the memory works on all of them
  // at once: Line, which the caller prefetches, then Find.
  const Cell* Line(uint64_t hash) const { return head_->Line(hash); }
  // The id's cell, or nullptr. `line` is Line(hash) of the id's hash, and nothing has changed since.
  const Cell* Find(const Cell* line, uint64_t id, uint64_t hash) const {
    const Cell* cell;
    return FindInLine(line, id, &cell) ? cell : head_->FindBeyond(line, id, hash);
  }
  // Whether the search ends with this line: with the id's cell or, it having none, with nullptr.
  static bool FindInLine(const Cell* line, uint64_t id, const Cell** cell) {
    const uint32_t match = (line[0].id == id ? 1u : 0u) | (line[1].id == id ? 2u : 0u) |
                           (line[2].id == id ? 4u : 0u) | (line[3].id == id ? 8u : 0u);
    if (match != 0) {
      // An empty cell has id 0; lines are filled from the front, so that a full cell is found before it.
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

  // Adds a cell for `id`, which has none. Cells may move.
  Cell* Insert(uint64_t id, uint64_t hash, uint32_t slot, uint32_t version);
  // Of the memory that growing will soon need; 0: not soon, or it is there.
  size_t WantedBytes() const;
  // Gives it such memory, cleared; returns what it has no use for.
  Arena::Block TakeSpare(Arena::Block memory);
  // Removes the cell of `id`, which has one. Cells may move.
  void Erase(uint64_t id);
  // Goes over to a smaller index when less than a third of the cells is full. Looks at every cell.
  void Shrink();
  void Clear();

  // Every full cell, in no particular order. `visit` may change slots and versions.
  void ForEach(absl::FunctionRef<void(Cell& cell)> visit);
  void ForEach(absl::FunctionRef<void(const Cell& cell)> visit) const;

  uint32_t size() const { return size_; }

 private:
  struct Table {
    Cell* cells = EmptyLine();
    uint32_t lines = 1;
    Arena::Block memory;  // none: the empty line
  };

  // The line of every index that has none yet; never written.
  static Cell* EmptyLine();
  static uint32_t Home(uint32_t tag, uint32_t lines) {
    return static_cast<uint32_t>((uint64_t{tag} * lines) >> 32);
  }
  // Whether an id's home line in old_ has been moved to table_.
  bool Moved(uint32_t tag) const {
    const uint32_t home = Home(tag, old_.lines);
    return (home >= move_begin_ ? home - move_begin_ : home + old_.lines - move_begin_) < moved_lines_;
  }
  // The first tag whose home is `line`; 2^32, so 0, for the line after the last.
  static uint32_t FirstTag(uint32_t line, uint32_t lines) {
    return static_cast<uint32_t>(((uint64_t{line} << 32) + lines - 1) / lines);
  }
  void UpdateHead();
  static Cell* Place(Table& table, uint64_t id, uint64_t hash, uint32_t slot, uint32_t version);
  void GoOverTo(uint32_t lines);
  void MoveSome(uint32_t lines);

  Table table_;
  // While growing: lines [move_begin_, move_begin_ + moved_lines_) of old_, going round, have been moved.
  // They end where a line has room, so that nothing before that end has run over into what comes after it.
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
