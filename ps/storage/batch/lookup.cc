#include "ps/storage/batch/lookup.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ps/storage/batch/lookup.cc"
#include <algorithm>

#include "base/random.h"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set
#include "hwy/highway.h"
#include "ps/storage/batch/prefetch.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Cell = RowIndex::Cell;

// 64 were a nanosecond faster where rows lie close together, and not where they lie far apart (a few launches
// on a busy machine).
constexpr size_t kLinesAhead = 32;
constexpr size_t kBlock = 16;

// Bit 2c: cell c of the line has this id.
HWY_INLINE uint32_t Matches(const Cell* line, uint64_t id) {
#if HWY_TARGET <= HWY_AVX3
  const hn::FixedTag<uint64_t, 8> d;
  const auto* const words = reinterpret_cast<const uint64_t*>(line);
  return static_cast<uint32_t>(hn::Eq(hn::LoadU(d, words), hn::Set(d, id)).raw) & 0x55u;
#else
  return (line[0].id == id ? 0x01u : 0u) | (line[1].id == id ? 0x04u : 0u) | (line[2].id == id ? 0x10u : 0u) |
         (line[3].id == id ? 0x40u : 0u);
#endif
}

template <int kLocality = kPrefetchLocality>
struct Ids {
  static constexpr int kLineLocality = kLocality;  // how near index lines are fetched
  const uint64_t* ids;
  size_t count;
  uint64_t id(size_t i) const { return ids[i]; }
  uint64_t hash(size_t i) const { return Mix64(ids[i]); }
  void HashBlock(size_t begin, uint64_t* hashes) const {
#if HWY_TARGET <= HWY_AVX3
    // Mix64 of eight at once. Other instruction sets cannot multiply 64-bit lanes.
    const hn::FixedTag<uint64_t, 8> d;
    for (size_t i = 0; i < kBlock; i += 8) {
      auto x = hn::Add(hn::LoadU(d, ids + begin + i), hn::Set(d, 0x9e3779b97f4a7c15ull));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<30>(x)), hn::Set(d, 0xbf58476d1ce4e5b9ull));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<27>(x)), hn::Set(d, 0x94d049bb133111ebull));
      hn::StoreU(hn::Xor(x, hn::ShiftRight<31>(x)), d, hashes + i);
    }
#else
    for (size_t i = 0; i < kBlock; ++i) hashes[i] = hash(begin + i);
#endif
  }
};
struct Items {
  static constexpr int kLineLocality = kPrefetchLocality;
  const Grouping::Item* items;
  size_t count;
  uint64_t id(size_t i) const { return items[i].id; }
  uint64_t hash(size_t i) const { return items[i].hash; }
  void HashBlock(size_t begin, uint64_t* hashes) const {
    for (size_t i = 0; i < kBlock; ++i) hashes[i] = items[begin + i].hash;
  }
};

// Calls emit(i, cell, slot_plus_1) for each id in turn, with a slot_plus_1 of 0 (and any cell) for those
// without one, and then once more for those whose cell lies further on; and then found(begin, end): so for
// each `chunk` ids (a multiple of kBlock).
template <class Keys, class Emit, class Found>
HWY_INLINE void FindAll(const Indexes& indexes, const Keys keys, size_t chunk, const Emit& emit,
                        const Found& found) {
  const RowIndex::Head* const heads = indexes.heads;
  const uint32_t bucket_mask = indexes.bucket_mask;
  const Cell* lines[kMaxLookup];
  uint32_t beyond[kMaxLookup + 1];
  uint32_t beyond_count = 0;
  const size_t count = keys.count;
  const auto find_lines = [&](size_t begin) HWY_ATTR {
    if (begin >= count) return;
    uint64_t hashes[kBlock];
    const size_t n = std::min(kBlock, count - begin);
    if (n == kBlock) {
      keys.HashBlock(begin, hashes);
    } else {
      for (size_t i = 0; i < n; ++i) hashes[i] = keys.hash(begin + i);
    }
    for (size_t i = 0; i < n; ++i) {
      const uint64_t hash = hashes[i];
      const Cell* const line = heads[static_cast<uint32_t>(hash >> 32) & bucket_mask].Line(hash);
      lines[begin + i] = line;
      __builtin_prefetch(line, 0, Keys::kLineLocality);
    }
  };
  for (size_t begin = 0; begin < kLinesAhead; begin += kBlock) find_lines(begin);
  for (size_t begin = 0; begin < count; begin += kBlock) {
    find_lines(begin + kLinesAhead);
    const size_t end = std::min(begin + kBlock, count);
    for (size_t i = begin; i < end; ++i) {
      const Cell* const line = lines[i];
      const uint32_t matches = Matches(line, keys.id(i));
      const Cell* const cell = line + (__builtin_ctz(matches | 0x100u) / 2 & 3);
      const bool more = (matches == 0) & (line[RowIndex::kLineCells - 1].slot_plus_1 != 0);
      beyond[beyond_count] = static_cast<uint32_t>(i);
      beyond_count += more ? 1 : 0;
      __builtin_prefetch(more ? line + RowIndex::kLineCells : line);
      // An empty cell has id 0; lines are filled from the front, so that a full cell is found before it.
      emit(i, cell, matches != 0 ? cell->slot_plus_1 : 0);
    }
    if (end % chunk != 0 && end != count) continue;
    for (uint32_t k = 0; k < beyond_count; ++k) {
      const size_t i = beyond[k];
      const uint64_t hash = keys.hash(i);
      const Cell* const cell = indexes.HeadOf(hash).FindBeyond(lines[i], keys.id(i), hash);
      if (cell != nullptr) emit(i, cell, cell->slot_plus_1);
    }
    beyond_count = 0;
    found((end - 1) / chunk * chunk, end);
  }
}

constexpr auto kNothing = [](size_t, size_t) {};

void FindRowsOf(const Indexes& indexes, const RowAddress& by_reference, const uint64_t* ids, size_t count,
                size_t row_bytes, const char** rows, absl::FunctionRef<void(size_t, size_t)> found) {
  constexpr size_t kChunk = 128;
  const RowAddress address = by_reference;
  const auto emit = [&](size_t i, const Cell*, uint32_t slot_plus_1) HWY_ATTR {
    // No branch on what is there but for the rare id without a row.
    const char* const row = address.Of(slot_plus_1 == 0 ? 0 : slot_plus_1 - 1);
    rows[i] = slot_plus_1 == 0 ? nullptr : row;
    if (slot_plus_1 != 0) Prefetch(row, row_bytes);
  };
  // Where rows are short, index lines that only the second level had been asked for were waited for, 35 of 80
  // ns a row of 64 bytes whose index was in no cache. (Rows of 128 and 256 bytes were gathered a twelfth
  // slower by way of the first level, sorted items updated a fifth slower.)
  constexpr size_t kShortRow = 64;
  if (row_bytes <= kShortRow) {
    FindAll(indexes, Ids<3>{ids, count}, kChunk, emit, found);
  } else {
    FindAll(indexes, Ids<>{ids, count}, kChunk, emit, found);
  }
}

void FindCellsOfIds(const Indexes& indexes, const uint64_t* ids, size_t count, const Cell** cells) {
  const auto emit = [&](size_t i, const Cell* cell, uint32_t slot_plus_1)
                        HWY_ATTR { cells[i] = slot_plus_1 == 0 ? nullptr : cell; };
  FindAll(indexes, Ids<>{ids, count}, kMaxLookup, emit, kNothing);
}

void FindCellsOfItems(const Indexes& indexes, const Grouping::Item* items, size_t count, const Cell** cells) {
  const auto emit = [&](size_t i, const Cell* cell, uint32_t slot_plus_1)
                        HWY_ATTR { cells[i] = slot_plus_1 == 0 ? nullptr : cell; };
  FindAll(indexes, Items{items, count}, kMaxLookup, emit, kNothing);
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "base/status.h"

namespace tandem::ps {

HWY_EXPORT(FindRowsOf);
HWY_EXPORT(FindCellsOfIds);
HWY_EXPORT(FindCellsOfItems);

void FindRows(const Indexes& indexes, const RowAddress& address, absl::Span<const uint64_t> ids,
              size_t row_bytes, const char** rows, absl::FunctionRef<void(size_t begin, size_t end)> found) {
  TANDEM_CHECK(ids.size() <= kMaxLookup);
  HWY_DYNAMIC_DISPATCH(FindRowsOf)
  (indexes, address, ids.data(), ids.size(), row_bytes, rows, found);
}
void FindCells(const Indexes& indexes, absl::Span<const uint64_t> ids, const RowIndex::Cell** cells) {
  TANDEM_CHECK(ids.size() <= kMaxLookup);
  HWY_DYNAMIC_DISPATCH(FindCellsOfIds)(indexes, ids.data(), ids.size(), cells);
}
void FindCells(const Indexes& indexes, absl::Span<const Grouping::Item> items, const RowIndex::Cell** cells) {
  TANDEM_CHECK(items.size() <= kMaxLookup);
  HWY_DYNAMIC_DISPATCH(FindCellsOfItems)(indexes, items.data(), items.size(), cells);
}

}  // namespace tandem::ps
#endif  // HWY_ONCE
