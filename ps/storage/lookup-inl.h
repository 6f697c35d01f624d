// SPDX-License-Identifier: Apache-2.0
// FindAll is the loop that all lookups share (lookup.h, gather_rows.h). This file is included once per
// instruction set (hwy/foreach_target.h), hence the unusual guard.
//
// A lookup has three steps: read the index line, find the cell in it, use the row. The line and the row
// usually come from memory. One loop does all three, software-pipelined, each step for another id:
//
//   - it prefetches the line of id i + kLinesAhead;
//   - it searches the line of id i and prefetches that id's row;
//   - it uses the row of id i - kUsedBehind.
//
// Memory is therefore busy all the time. With a separate loop for each step it idles while rows are copied,
// which is a sixth slower.
//
// No branch in the loop depends on what is found, because a misprediction discards the work begun for several
// later ids. An id that is not in its first line (one in seventeen) first gets the result of an absent id.
// These ids are then looked up once more, all together, in the lines that follow.

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

// Returns the slot of the id's row if its cell is in this line, else kNoSlot.
HWY_INLINE uint32_t SlotIn(const Cell* line, uint64_t id) {
#if HWY_TARGET <= HWY_AVX3
  // Extracts the word [slot | version] that follows the id among the line's eight words, or zero. (Highway's
  // Compress does not clear the rest and copies a table of 2 KiB each time.)
  const hn::FixedTag<uint64_t, 8> d;
  const auto words = hn::LoadU(d, reinterpret_cast<const uint64_t*>(line));
  const __mmask8 ids = _mm512_mask_cmpeq_epi64_mask(0x55, words.raw, hn::Set(d, id).raw);
  return static_cast<uint32_t>(_mm_cvtsi128_si64(
      _mm512_castsi512_si128(_mm512_maskz_compress_epi64(_kshiftli_mask8(ids, 1), words.raw))));
#else
  // Empty cells have id 0 and slot kNoSlot, which is 0.
  return (line[0].id == id ? line[0].slot : 0) | (line[1].id == id ? line[1].slot : 0) |
         (line[2].id == id ? line[2].slot : 0) | (line[3].id == id ? line[3].slot : 0);
#endif
}

// Returns the id's cell if it is in this line, else nullptr.
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

// The keys of a lookup, given as ids. kLocality is the cache level to which their index lines are prefetched.
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
    // Computes Mix64 of eight ids at once. Other instruction sets cannot multiply 64-bit lanes.
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
// The keys of a lookup, given as items, which contain their hashes.
struct Items {
  static constexpr int kLineLocality = kPrefetchLocality;
  static constexpr size_t kHashes = 1;
  const Grouping::Item* items;
  size_t count;
  uint64_t id(size_t i) const { return items[i].id; }
  void Hash(uint64_t*) const {}
  uint64_t hash(const uint64_t*, size_t i) const { return items[i].hash; }
};

// Writes the i < count with results[i] == none to `at`, in ascending order, and returns their number. `at`
// has space for kMaxLookup of them and one vector more.
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

// Looks up all keys.
//
//   - take(line, i) returns the result of key i if its cell is in `line`, else `none`. It may also prefetch
//     the row.
//   - results[i] becomes the key's result, or `none` if it has no row.
//   - use(i) is called some time after take(line, i), when the prefetched row should have arrived: once for
//     each key, and a second time for keys that were found only in a later line.
//   - absent(i) is called at the end, in ascending order, for the keys without a row.
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
  uint32_t far[kMaxLookup];  // keys that are not in their second line either: one in eighty
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
