// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/rows/row_index.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kFirstLines = 2;
constexpr uint32_t kMaxLines = uint32_t{1} << 30;  // 2^32 cells a bucket
constexpr uint32_t kLinesMovedPerInsert = 16;      // little work per insert, and yet growth ends soon

constexpr bool TooFull(uint64_t cells_used, uint64_t lines) {
  return 5 * cells_used > 3 * lines * RowIndex::kLineCells;
}

constexpr uint32_t Grown(uint32_t lines) { return lines + (lines + 3) / 4; }
constexpr size_t BytesOf(uint32_t lines) {
  return size_t{lines} * RowIndex::kLineCells * sizeof(RowIndex::Cell);
}
// The memory of smaller indexes comes from shared regions and is allocated quickly.
constexpr size_t kWorthPreparing = size_t{64} << 10;

}  // namespace

RowIndex::Cell* RowIndex::EmptyLine() {
  alignas(64) static const Cell line[kLineCells] = {};
  return const_cast<Cell*>(line);
}

const RowIndex::Cell* RowIndex::Head::FindBeyond(const Cell* line, uint64_t id, uint64_t hash) const {
  // An index always has empty cells, so this ends.
  while (true) {
    line = Next(line, hash);
    const Cell* cell;
    if (FindInLine(line, id, &cell)) return cell;
  }
}

void RowIndex::UpdateHead() {
  *head_ = Head{};
  head_->cells[0] = head_->cells[1] = table_.cells;
  head_->lines[0] = head_->lines[1] = table_.lines;
  if (old_.lines == 0) return;
  // Here at least one line has been moved and at least one has not.
  head_->cells[0] = old_.cells;
  head_->lines[0] = old_.lines;
  const auto end = static_cast<uint32_t>((uint64_t{move_begin_} + moved_lines_) % old_.lines);
  head_->moved_from = FirstTag(move_begin_, old_.lines);
  head_->moved_tags_less_1 = FirstTag(end, old_.lines) - head_->moved_from - 1;
}

RowIndex::Cell* RowIndex::Place(Table& table, uint64_t id, uint64_t hash, uint32_t slot, uint32_t version) {
  const size_t count = size_t{kLineCells} * table.lines;
  size_t at = size_t{kLineCells} * Home(TagOf(hash), table.lines);
  while (table.cells[at].slot != kNoSlot) at = at + 1 == count ? 0 : at + 1;
  table.cells[at] = Cell{id, slot, version};
  return &table.cells[at];
}

RowIndex::Cell* RowIndex::Insert(uint64_t id, uint64_t hash, uint32_t slot, uint32_t version) {
  if (old_.lines != 0) {
    MoveSome(kLinesMovedPerInsert);
  } else if (size_ == 0 ? table_.memory.data() == nullptr : TooFull(uint64_t{size_} + 1, table_.lines)) {
    GoOverTo(table_.memory.data() == nullptr ? kFirstLines : Grown(table_.lines));
  }
  ++size_;
  const bool in_old = old_.lines != 0 && !Moved(TagOf(hash));
  return Place(in_old ? old_ : table_, id, hash, slot, version);
}

size_t RowIndex::WantedBytes() const {
  if (old_.lines != 0 || table_.memory.data() == nullptr || spare_.data() != nullptr) return 0;
  const size_t bytes = BytesOf(Grown(table_.lines));
  if (bytes < kWorthPreparing) return 0;
  // Only shortly before growth, so that the memory is seldom held unused for long.
  return TooFull(uint64_t{size_} + std::max<uint32_t>(64, size_ / 32), table_.lines) ? bytes : 0;
}

Arena::Block RowIndex::TakeSpare(Arena::Block memory) {
  if (WantedBytes() > 0 && memory.bytes() >= WantedBytes()) std::swap(spare_, memory);
  return memory;
}

void RowIndex::GoOverTo(uint32_t lines) {
  TANDEM_CHECK(lines <= kMaxLines);
  Table next;
  next.lines = lines;
  next.memory = std::exchange(spare_, Arena::Block());
  if (next.memory.bytes() < BytesOf(lines) || next.memory.bytes() >= 2 * BytesOf(lines)) {
    next.memory = arena_->AllocateZeroed(BytesOf(lines));
  }
  next.cells = reinterpret_cast<Cell*>(next.memory.data());
  std::swap(table_, next);
  if (size_ == 0) return UpdateHead();
  old_ = std::move(next);
  moved_lines_ = 0;
  // No probe passes a line that is not full. Moving may therefore begin at the line after such a line.
  const auto has_room = [this](uint32_t line) {
    return old_.cells[size_t{kLineCells} * line + kLineCells - 1].slot == kNoSlot;
  };
  for (move_begin_ = 0; !has_room((move_begin_ == 0 ? old_.lines : move_begin_) - 1);) ++move_begin_;
  MoveSome(kLinesMovedPerInsert);
}

void RowIndex::MoveSome(uint32_t lines) {
  for (bool ends_here = false; moved_lines_ < old_.lines || !ends_here;) {
    const uint32_t line = static_cast<uint32_t>((uint64_t{move_begin_} + moved_lines_) % old_.lines);
    Cell* const cells = old_.cells + size_t{kLineCells} * line;
    ends_here = cells[kLineCells - 1].slot == kNoSlot;
    for (uint32_t i = 0; i < kLineCells && cells[i].slot != kNoSlot; ++i) {
      Place(table_, cells[i].id, Mix64(cells[i].id), cells[i].slot, cells[i].version);
      cells[i] = Cell{};
    }
    ++moved_lines_;
    if (lines > 0) --lines;
    if (lines == 0 && ends_here && moved_lines_ < old_.lines) return UpdateHead();
  }
  old_ = Table{};
  old_.lines = 0;
  UpdateHead();
}

void RowIndex::Erase(uint64_t id) {
  const uint64_t hash = Mix64(id);
  Table& table = old_.lines != 0 && !Moved(TagOf(hash)) ? old_ : table_;
  Cell* const erased = Find(Line(hash), id, hash);
  TANDEM_CHECK(erased != nullptr);
  // Cells after the hole move into it if their probe would otherwise end there (Knuth, volume 3, section 6.4,
  // algorithm R).
  const size_t count = size_t{kLineCells} * table.lines;
  size_t hole = erased - table.cells;
  for (size_t at = hole;;) {
    at = at + 1 == count ? 0 : at + 1;
    if (table.cells[at].slot == kNoSlot) break;
    const size_t home = size_t{kLineCells} * Home(TagOf(Mix64(table.cells[at].id)), table.lines);
    // The cell may move only if a probe from `home` meets the hole before it meets `at`.
    const size_t to_hole = hole >= home ? hole - home : hole + count - home;
    const size_t to_cell = at >= home ? at - home : at + count - home;
    if (to_hole > to_cell) continue;
    table.cells[hole] = table.cells[at];
    hole = at;
  }
  table.cells[hole] = Cell{};
  --size_;
}

void RowIndex::Shrink() {
  if (table_.memory.data() == nullptr) return;
  if (old_.lines != 0) MoveSome(old_.lines);
  // The new table is three fifths full: between the load at which it grows and the load at which it shrinks.
  const uint64_t lines = std::max<uint64_t>(kFirstLines, uint64_t{size_} * 5 / (3 * kLineCells) + 1);
  if (lines * 2 > table_.lines) return;
  GoOverTo(static_cast<uint32_t>(lines));
  if (old_.lines != 0) MoveSome(old_.lines);
}

void RowIndex::Clear() {
  spare_ = Arena::Block();
  table_ = Table{};
  old_ = Table{};
  old_.lines = 0;
  size_ = 0;
  UpdateHead();
}

void RowIndex::ForEach(absl::FunctionRef<void(Cell& cell)> visit) {
  for (Table* table : {&old_, &table_}) {
    const size_t count = table->memory.data() == nullptr ? 0 : size_t{kLineCells} * table->lines;
    for (size_t i = 0; i < count; ++i) {
      if (table->cells[i].slot != kNoSlot) visit(table->cells[i]);
    }
  }
}

void RowIndex::ForEach(absl::FunctionRef<void(const Cell& cell)> visit) const {
  const_cast<RowIndex*>(this)->ForEach([&](Cell& cell) { visit(cell); });
}

}  // namespace tandem::ps
