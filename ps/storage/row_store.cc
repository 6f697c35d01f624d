#include "ps/storage/row_store.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/numeric/bits.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kChunkBytes = size_t{16} << 10;
constexpr size_t kMaxSlabBytes = size_t{1} << 20;
constexpr size_t kMaxChunkRows = 1024;
constexpr uint32_t kFirstRows = 4;
constexpr uint32_t kMaxRows = uint32_t{3} << 30;  // some 800 billion in 256 buckets

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

RowLayout::RowLayout(size_t dim, size_t state_floats, DType dtype, bool counted)
    : dim(dim),
      state_floats(state_floats),
      dtype(dtype),
      embedding_bytes(dim * SizeOf(dtype)),
      state_offset(RoundUp(embedding_bytes, sizeof(float))),
      count_offset(counted ? state_offset + state_floats * sizeof(float) : 0),
      stride(state_offset + state_floats * sizeof(float) + (counted ? sizeof(uint32_t) : 0)),
      chunk_shift(absl::bit_width(std::clamp<size_t>(kChunkBytes / stride, 1, kMaxChunkRows)) - 1),
      chunk_bytes(RoundUp(stride << chunk_shift, kCacheLine)) {}

uint32_t RowStore::TakeSlot() {
  if (free_ != 0) {
    const uint32_t slot = free_ - 1;
    std::memcpy(&free_, RowAt(slot), sizeof(free_));
    --free_count_;
    return slot;
  }
  if (used_ == capacity_) GrowRows();
  return used_++;
}

char* RowStore::Insert(uint64_t id, uint64_t hash, uint32_t version) {
  const uint32_t slot = TakeSlot();
  index_.Insert(id, hash, slot, version);
  char* const row = RowAt(slot);
  layout_->set_count(row, 0);
  return row;
}

void RowStore::Erase(uint64_t id) {
  const Cell* const cell = index_.Find(id);
  TANDEM_CHECK(cell != nullptr);
  const uint32_t slot = cell->slot();
  index_.Erase(id);
  std::memcpy(RowAt(slot), &free_, sizeof(free_));
  free_ = slot + 1;
  ++free_count_;
}

void RowStore::GrowRows() {
  TANDEM_CHECK(used_ < kMaxRows);
  const size_t chunk_rows = layout_->chunk_rows();
  if (capacity_ < chunk_rows) {
    const size_t rows = std::min<size_t>(chunk_rows, std::max<size_t>(kFirstRows, 2 * size_t{capacity_}));
    Arena::Block chunk = arena_->AllocateUnits(RoundUp(rows * layout_->stride, kCacheLine), 1);
    if (used_ > 0) std::memcpy(chunk.data(), chunks_[0], used_ * layout_->stride);
    chunks_.assign(1, chunk.data());
    slabs_.clear();
    slabs_.push_back(std::move(chunk));
    capacity_ = static_cast<uint32_t>(rows);
    return;
  }
  const size_t most = std::max<size_t>(1, kMaxSlabBytes / layout_->chunk_bytes);
  slabs_.push_back(
      arena_->AllocateUnits(layout_->chunk_bytes, std::clamp<size_t>(chunks_.size() / 8, 1, most)));
  const size_t count = slabs_.back().bytes() / layout_->chunk_bytes;
  for (size_t i = 0; i < count; ++i) chunks_.push_back(slabs_.back().data() + i * layout_->chunk_bytes);
  capacity_ = static_cast<uint32_t>(
      std::min<uint64_t>(std::numeric_limits<uint32_t>::max(), uint64_t{capacity_} + count * chunk_rows));
}

void RowStore::Compact() {
  if (size() == 0) return Clear();
  const uint32_t keep = size();
  std::vector<uint32_t> holes;  // free slots below `keep`, as many as there are rows above
  for (; free_ != 0; --free_count_) {
    const uint32_t slot = free_ - 1;
    std::memcpy(&free_, RowAt(slot), sizeof(free_));
    if (slot < keep) holes.push_back(slot);
  }
  index_.ForEach([&](Cell& cell) {
    if (cell.slot() < keep) return;
    std::memcpy(RowAt(holes.back()), RowAt(cell.slot()), layout_->stride);
    cell.slot_plus_1 = holes.back() + 1;
    holes.pop_back();
  });
  used_ = keep;
  // Slabs that hold no row any more; the first chunk stays whole.
  while (slabs_.size() > 1) {
    const size_t chunks = slabs_.back().bytes() / layout_->chunk_bytes;
    const uint64_t rows = (chunks_.size() - chunks) * layout_->chunk_rows();
    if (rows < used_) break;
    capacity_ = static_cast<uint32_t>(rows);
    chunks_.resize(chunks_.size() - chunks);
    slabs_.pop_back();
  }
  index_.Shrink();
}

void RowStore::ForEach(absl::FunctionRef<void(const Cell& cell, const char* row)> visit) const {
  index_.ForEach([&](const Cell& cell) { visit(cell, RowAt(cell.slot())); });
}

void RowStore::Clear() {
  index_.Clear();
  chunks_ = std::vector<char*>();  // gives the memory back, which clear() would not
  slabs_ = std::vector<Arena::Block>();
  used_ = capacity_ = free_ = free_count_ = 0;
}

size_t RowStore::own_bytes() const {
  return chunks_.capacity() * sizeof(chunks_[0]) + slabs_.capacity() * sizeof(slabs_[0]);
}

}  // namespace tandem::ps
