// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/rows/row_store.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "base/round_up.h"
#include "base/status.h"

namespace tandem::ps {
namespace {

constexpr size_t kMaxRunBytes = size_t{1} << 20;
constexpr size_t kFirstRunBytes = size_t{16} << 10;
constexpr size_t kFirstRows = 4;

// Returns the stride that spreads embeddings over the memory's channels. If all embeddings were in the same
// half of each 512 bytes, half of the channels would serve them: 34 ns a row instead of 16. One cache line
// between rows avoids that. If they were in the same half of each 128 bytes, index lookups would wait (37 of
// 59 ns a row); a quarter of a line is enough there.
size_t Spread(size_t row_bytes, size_t embedding_bytes) {
  if (embedding_bytes <= 64 && row_bytes % 128 == 0) return row_bytes + 16;
  return embedding_bytes <= 256 && row_bytes % 512 == 0 ? row_bytes + 64 : row_bytes;
}

}  // namespace

RowLayout::RowLayout(size_t dim, size_t state_floats, DType dtype, bool counted)
    : dim(dim),
      state_floats(state_floats),
      dtype(dtype),
      embedding_bytes(dim * SizeOf(dtype)),
      state_offset(RoundUp(embedding_bytes, sizeof(float))),
      count_offset(counted ? state_offset + state_floats * sizeof(float) : 0),
      row_bytes(state_offset + state_floats * sizeof(float) + (counted ? sizeof(uint32_t) : 0)),
      stride(Spread(row_bytes, embedding_bytes)) {}

uint32_t RowStore::TakeSlot() {
  if (free_ != kNoSlot) {
    const uint32_t slot = free_;
    std::memcpy(&free_, RowAt(slot), sizeof(free_));
    --free_count_;
    return slot;
  }
  if (next_ == end_) TakeRun();
  return next_++;
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
  const uint32_t slot = cell->slot;
  index_.Erase(id);
  FreeSlot(slot);
}

void RowStore::FreeSlot(uint32_t slot) {
  std::memcpy(RowAt(slot), &free_, sizeof(free_));
  free_ = slot;
  ++free_count_;
}

void RowStore::TakeRun() {
  const size_t first = std::clamp<size_t>(kFirstRunBytes / layout_->stride, 1, kFirstRows);
  const size_t most = std::max<size_t>(first, kMaxRunBytes / layout_->stride);
  const RowPool::Run run = pool_->Take(static_cast<uint32_t>(std::clamp<size_t>(size() / 16, first, most)));
  next_ = run.begin;
  end_ = run.end;
  runs_.push_back(run);
}

void RowStore::Compact() {
  if (size() == 0) return Clear();
  std::sort(runs_.begin(), runs_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  size_t kept = 0;
  for (uint64_t slots = 0; slots < size(); ++kept) slots += runs_[kept].size();
  std::vector<RowPool::Run> dropped(runs_.begin() + kept, runs_.end());
  runs_.resize(kept);
  const auto by_begin = [](const RowPool::Run& a, const RowPool::Run& b) { return a.begin < b.begin; };
  std::sort(dropped.begin(), dropped.end(), by_begin);
  const auto leaves = [&](uint32_t slot) {
    const auto after = std::upper_bound(dropped.begin(), dropped.end(), RowPool::Run{slot, slot}, by_begin);
    return after != dropped.begin() && slot < std::prev(after)->end;
  };
  std::vector<uint32_t> holes;
  for (; free_ != kNoSlot; --free_count_) {
    const uint32_t slot = free_;
    std::memcpy(&free_, RowAt(slot), sizeof(free_));
    if (!leaves(slot)) holes.push_back(slot);
  }
  for (; next_ < end_; ++next_) {
    if (!leaves(next_)) holes.push_back(next_);
  }
  if (!dropped.empty()) {
    index_.ForEach([&](Cell& cell) {
      if (!leaves(cell.slot)) return;
      std::memcpy(RowAt(holes.back()), RowAt(cell.slot), layout_->stride);
      cell.slot = holes.back();
      holes.pop_back();
    });
  }
  for (const uint32_t slot : holes) FreeSlot(slot);
  for (const RowPool::Run& run : dropped) pool_->Release(run);
  index_.Shrink();
}

void RowStore::ForEach(absl::FunctionRef<void(const Cell& cell, const char* row)> visit) const {
  index_.ForEach([&](const Cell& cell) { visit(cell, RowAt(cell.slot)); });
}

void RowStore::Clear() {
  index_.Clear();
  ReleaseRuns();
  next_ = end_ = free_count_ = 0;
  free_ = kNoSlot;
}

void RowStore::ReleaseRuns() {
  for (const RowPool::Run& run : runs_) pool_->Release(run);
  runs_ = std::vector<RowPool::Run>();  // releases the memory, which clear() would not
}

size_t RowStore::own_bytes() const { return runs_.capacity() * sizeof(runs_[0]); }

}  // namespace tandem::ps
