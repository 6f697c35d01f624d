// The loop that all lookups share (lookup.h, gather_rows.h). Included once per instruction set
// (hwy/foreach_target.h), hence the guard.
//
// An id's way is a chain of three: its index line, its cell, its row, the first and the last of which come
// from memory. All stand in one loop, each for another id: the line of one is asked for, the cell of the id
// 32 before is searched and its row is asked for, the row of the id 48 before that is used. So the memory has
// always something to bring, where stages in loops of their own left it idle while rows were copied (a sixth
// slower). No branch in the loop depends on what is found: a wrong guess costs what the processor had begun
// for several ids after. An id that is not in the line where it should be (one in seventeen) so gets the
// result of one that has no row, at first; those are then looked at once more, all together, in the lines
// where they go on.

#if defined(TANDEM_PS_STORAGE_LOOKUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_PS_STORAGE_LOOKUP_INL_H_
#undef TANDEM_PS_STORAGE_LOOKUP_INL_H_
#else
#define TANDEM_PS_STORAGE_LOOKUP_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/random.h"
#include "hwy/highway.h"
#include "ps/storage/grouping.h"
#include "ps/storage/lookup.h"
#include "ps/storage/prefetch.h"
#include "ps/storage/rows/row_index.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::ps {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Cell = RowIndex::Cell;

constexpr size_t kLinesAhead = 32;
constexpr size_t kUsedBehind = 48;

// The slot of this id's row, or kNoSlot.
HWY_INLINE uint32_t SlotIn(const Cell* line, uint64_t id) {
#if HWY_TARGET <= HWY_AVX3
  // Of the line's eight words, the one that follows the id, [slot | version]; or zero. (Not Highway's
  // Compress, which does not clear the rest and copies a table of 2 KiB each time.)
  const hn::FixedTag<uint64_t, 8> d;
  const auto words = hn::LoadU(d, reinterpret_cast<const uint64_t*>(line));
  const __mmask8 ids = _mm512_mask_cmpeq_epi64_mask(0x55, words.raw, hn::Set(d, id).raw);
  return static_cast<uint32_t>(_mm_cvtsi128_si64(
      _mm512_castsi512_si128(_mm512_maskz_compress_epi64(_kshiftli_mask8(ids, 1), words.raw))));
#else
  // Empty cells have id 0, and no slot.
  return (line[0].id == id ? line[0].slot : 0) | (line[1].id == id ? line[1].slot : 0) |
         (line[2].id == id ? line[2].slot : 0) | (line[3].id == id ? line[3].slot : 0);
#endif
}

// This id's cell, or nullptr.
HWY_INLINE const Cell* CellIn(const Cell* line, uint64_t id) {
#if HWY_TARGET <= HWY_AVX3
  const hn::FixedTag<uint64_t, 8> d;
  const auto words = hn::LoadU(d, reinterpret_cast<const uint64_t*>(line));
  const uint32_t matches = static_cast<uint32_t>(hn::Eq(words, hn::Set(d, id)).raw) & 0x55u;
#else
  const uint32_t matches = (line[0].id == id ? 0x01u : 0u) | (line[1].id == id ? 0x04u : 0u) |
                           (line[2].id == id ? 0x10u : 0u) | (line[3].id == id ? 0x40u : 0u);
#endif
  // Lines are filled from the front, so that a full cell of id 0 is found before an empty one.
  const Cell* const cell = line + (__builtin_ctz(matches | 0x100u) / 2 & 3);
  return (matches != 0) & (cell->slot != kNoSlot) ? cell : nullptr;
}

// Keys of a lookup. kLocality: how near their index lines are fetched.
template <int kLocality = kPrefetchLocality>
struct Ids {
  static constexpr int kLineLocality = kLocality;
  static constexpr size_t kHashes = kMaxLookup;
  const uint64_t* ids;
  size_t count;
  uint64_t id(size_t i) const { return ids[i]; }
  void Hash(uint64_t* hashes) const {
    size_t i = 0;
#if HWY_TARGET <= HWY_AVX3
    // Mix64 of eight at once. Other instruction sets cannot multiply 64-bit lanes.
    const hn::FixedTag<uint64_t, 8> d;
    for (; i + 8 <= count; i += 8) {
      auto x = hn::Add(hn::LoadU(d, ids + i), hn::Set(d, 0x9e3779b97f4a7c15ull));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<30>(x)), hn::Set(d, 0xbf58476d1ce4e5b9ull));
      x = hn::Mul(hn::Xor(x, hn::ShiftRight<27>(x)), hn::Set(d, 0x94d049bb133111ebull));
      hn::StoreU(hn::Xor(x, hn::ShiftRight<31>(x)), d, hashes + i);
    }
#endif
    for (; i < count; ++i) hashes[i] = Mix64(ids[i]);
  }
  uint64_t hash(const uint64_t* hashes, size_t i) const { return hashes[i]; }
};
struct Items {
  static constexpr int kLineLocality = kPrefetchLocality;
  static constexpr size_t kHashes = 1;
  const Grouping::Item* items;
  size_t count;
  uint64_t id(size_t i) const { return items[i].id; }
  void Hash(uint64_t*) const {}
  uint64_t hash(const uint64_t*, size_t i) const { return items[i].hash; }
};

// at = the i < count with results[i] == none, in order. Returns how many; `at` has room for kMaxLookup of
// them and a vector more.
template <class Result>
HWY_INLINE size_t Positions(const Result* const* results, const Result* none, size_t count, uint64_t* at) {
  size_t found = 0, i = 0;
#if HWY_TARGET <= HWY_AVX3
  const hn::FixedTag<uint64_t, 8> d;
  for (; i + 8 <= count; i += 8) {
    const auto some = hn::LoadU(d, reinterpret_cast<const uint64_t*>(results + i));
    const __mmask8 which = hn::Eq(some, hn::Set(d, reinterpret_cast<uint64_t>(none))).raw;
    _mm512_storeu_si512(at + found, _mm512_maskz_compress_epi64(which, hn::Iota(d, i).raw));
    found += static_cast<size_t>(__builtin_popcount(which));
  }
#endif
  for (; i < count; ++i) {
    at[found] = i;
    found += results[i] == none ? 1 : 0;
  }
  return found;
}

// results[i] = take(line, i) for the line that has the i-th id's cell, or `none`, which is what take(line, i)
// returns for a line that has not; in the end absent(i) is called, in order, for those of which none has.
// use(i) is called when what take(line, i) asked for has had some time to come: once for each i, and once
// more, with another result, for some that have one only then.
template <class Keys, class Result, class Take, class Use, class Absent>
HWY_INLINE void FindAll(const Indexes& by_reference, const Keys keys, const Result* none,
                        const Result** results, const Take& take, const Use& use, const Absent& absent) {
  const Indexes indexes = by_reference;
  const size_t count = keys.count;
  const Cell* lines[kMaxLookup];
  uint64_t hashes[Keys::kHashes];
  keys.Hash(hashes);
  const auto find_line = [&](size_t i) HWY_ATTR {
    const uint64_t hash = keys.hash(hashes, i);
    const Cell* const line = indexes.HeadOf(hash).Line(hash);
    lines[i] = line;
    __builtin_prefetch(line, 0, Keys::kLineLocality);
  };
  for (size_t i = 0; i < std::min(kLinesAhead, count); ++i) find_line(i);
  size_t i = 0;
  for (; i < std::min(kUsedBehind, count); ++i) {
    if (i + kLinesAhead < count) find_line(i + kLinesAhead);
    results[i] = take(lines[i], i);
  }
  for (; i + kLinesAhead < count; ++i) {
    find_line(i + kLinesAhead);
    results[i] = take(lines[i], i);
    use(i - kUsedBehind);
  }
  for (; i < count; ++i) {
    results[i] = take(lines[i], i);
    use(i - kUsedBehind);
  }
  for (i = count - std::min(kUsedBehind, count); i < count; ++i) use(i);

  const auto is_full = [&](size_t i) HWY_ATTR { return lines[i][RowIndex::kLineCells - 1].slot != kNoSlot; };
  uint64_t without[kMaxLookup + 8];
  const size_t without_count = Positions(results, none, count, without);
  uint32_t further[kMaxLookup];
  size_t further_count = 0;
  for (size_t k = 0; k < without_count; ++k) {
    further[further_count] = static_cast<uint32_t>(without[k]);
    further_count += is_full(without[k]) ? 1 : 0;
  }
  const auto go_on = [&](size_t i) HWY_ATTR {
    const uint64_t hash = keys.hash(hashes, i);
    lines[i] = indexes.HeadOf(hash).Next(lines[i], hash);
  };
  const auto ask_for_next = [&](size_t i) HWY_ATTR {
    go_on(i);
    __builtin_prefetch(lines[i], 0, Keys::kLineLocality);
  };
  for (size_t k = 0; k < further_count; ++k) ask_for_next(further[k]);
  uint32_t far[kMaxLookup];  // one in eighty
  size_t far_count = 0;
  for (size_t k = 0; k < further_count; ++k) {
    const size_t i = further[k];
    results[i] = take(lines[i], i);
    far[far_count] = static_cast<uint32_t>(i);
    far_count += (results[i] == none) & is_full(i) ? 1 : 0;
  }
  for (size_t k = 0; k < far_count; ++k) ask_for_next(far[k]);
  for (size_t k = 0; k < far_count; ++k) {
    const size_t i = far[k];
    // An index always has empty cells, so this ends.
    for (results[i] = take(lines[i], i); results[i] == none && is_full(i); results[i] = take(lines[i], i)) {
      go_on(i);
    }
  }
  for (size_t k = 0; k < further_count; ++k) use(further[k]);
  for (size_t k = 0; k < without_count; ++k) {
    if (results[without[k]] == none) absent(without[k]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tandem::ps
HWY_AFTER_NAMESPACE();

#endif
