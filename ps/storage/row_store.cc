#include "ps/storage/row_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/numeric/bits.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kChunkBytes = size_t{16} << 10;
constexpr size_t kMaxSlabBytes = size_t{1} << 20;
constexpr size_t kMaxChunkRows = 1024;
constexpr uint32_t kFirstRows = 4;
constexpr uint32_t kFirstCells = 8;
constexpr uint32_t kMaxRows = uint32_t{3}
                              << 30;  // 2^32 cells, 3/4 full; some 800 billion rows in 256 buckets

}  // namespace

RowLayout::RowLayout(size_t dim, size_t state_floats)
    : dim(dim),
      state_floats(state_floats),
      // A row starts with an 8-byte id, so rows are multiples of 8 bytes.
      stride((sizeof(Row) + (dim + state_floats) * sizeof(float) + 7) / 8 * 8),
      chunk_shift(absl::bit_width(std::clamp<size_t>(kChunkBytes / stride, 1, kMaxChunkRows)) - 1) {}

Row* RowStore::Find(uint64_t id, uint32_t tag) const {
  if (cell_mask_ == 0) return nullptr;
  for (uint32_t at = tag & cell_mask_;; at = (at + 1) & cell_mask_) {
    const Cell cell = cells()[at];
    if (cell.slot_plus_1 == 0) return nullptr;
    if (cell.tag != tag) continue;
    Row* row = RowAt(cell.slot_plus_1 - 1);
    if (row->id == id) return row;
  }
}

Row* RowStore::Insert(uint64_t id, uint32_t tag) {
  TANDEM_CHECK(size_ < kMaxRows);
  if (size_ == capacity_) GrowRows();
  const uint64_t cells_now = cell_mask_ == 0 ? 0 : uint64_t{cell_mask_} + 1;
  if (4 * (uint64_t{size_} + 1) > 3 * cells_now) GrowIndex();
  uint32_t at = tag & cell_mask_;
  while (cells()[at].slot_plus_1 != 0) at = (at + 1) & cell_mask_;
  Row* row = RowAt(size_);
  *row = Row{id, 0, 0};
  cells()[at] = Cell{tag, ++size_};
  return row;
}

void RowStore::GrowIndex() {
  const uint64_t count = cell_mask_ == 0 ? kFirstCells : 2 * (uint64_t{cell_mask_} + 1);
  AlignedMemory old = std::exchange(index_, AlignedMemory(count * sizeof(Cell)));
  std::memset(index_.data(), 0, count * sizeof(Cell));
  const uint32_t mask = static_cast<uint32_t>(count - 1);
  const Cell* old_cells = reinterpret_cast<const Cell*>(old.data());
  const uint64_t old_count = cell_mask_ == 0 ? 0 : uint64_t{cell_mask_} + 1;
  for (uint64_t i = 0; i < old_count; ++i) {
    if (old_cells[i].slot_plus_1 == 0) continue;
    uint32_t at = old_cells[i].tag & mask;
    while (cells()[at].slot_plus_1 != 0) at = (at + 1) & mask;
    cells()[at] = old_cells[i];
  }
  cell_mask_ = mask;
}

void RowStore::GrowRows() {
  const size_t chunk_rows = layout_->chunk_rows();
  if (capacity_ < chunk_rows) {
    const size_t rows = std::min<size_t>(chunk_rows, std::max<size_t>(kFirstRows, 2 * size_t{capacity_}));
    AlignedMemory chunk(rows * layout_->stride);
    if (size_ > 0) std::memcpy(chunk.data(), first_chunk_.data(), size_ * layout_->stride);
    first_chunk_ = std::move(chunk);
    chunks_.assign(1, first_chunk_.data());
    capacity_ = static_cast<uint32_t>(rows);
    return;
  }
  const size_t chunk_bytes = chunk_rows * layout_->stride;
  const size_t most = std::max<size_t>(1, kMaxSlabBytes / chunk_bytes);
  slabs_.push_back(arena_->Allocate(chunk_bytes, std::clamp<size_t>(chunks_.size() / 8, 1, most)));
  const size_t count = slabs_.back().bytes / chunk_bytes;
  for (size_t i = 0; i < count; ++i) chunks_.push_back(slabs_.back().data + i * chunk_bytes);
  capacity_ = static_cast<uint32_t>(
      std::min<uint64_t>(std::numeric_limits<uint32_t>::max(), uint64_t{capacity_} + count * chunk_rows));
}

uint32_t RowStore::BeginUpdates(uint32_t count) {
  if (next_stamp_ > std::numeric_limits<uint32_t>::max() - count) {
    for (uint32_t slot = 0; slot < size_; ++slot) RowAt(slot)->stamp = 0;
    next_stamp_ = 1;
  }
  return std::exchange(next_stamp_, next_stamp_ + count);
}

void RowStore::ForEach(absl::FunctionRef<void(const Row& row)> visit) const {
  for (uint32_t slot = 0; slot < size_; ++slot) visit(*RowAt(slot));
}

void RowStore::Clear() {
  index_ = AlignedMemory();
  first_chunk_ = AlignedMemory();
  chunks_ = std::vector<char*>();  // gives the memory back, which clear() would not
  slabs_ = std::vector<Arena::Slab>();
  cell_mask_ = size_ = capacity_ = 0;
  next_stamp_ = 1;
}

size_t RowStore::own_bytes() const {
  return index_.bytes() + first_chunk_.bytes() + chunks_.capacity() * sizeof(chunks_[0]) +
         slabs_.capacity() * sizeof(slabs_[0]);
}

}  // namespace tandem::ps
