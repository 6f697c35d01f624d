// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_LOOKUP_H_
#define TANDEM_PS_STORAGE_LOOKUP_H_

// FindCells looks up many ids at once, so that their cache misses overlap (see lookup-inl.h for how).

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "ps/storage/grouping.h"
#include "ps/storage/rows/row_index.h"

namespace tandem::ps {

// The largest number of ids in one lookup.
inline constexpr size_t kMaxLookup = 1024;

// The indexes of all buckets of a table. A plain value that points into the table. A bucket's lock must be
// held while its index is used.
struct Indexes {
  const RowIndex::Head* heads;  // [bucket_mask + 1]
  uint32_t bucket_mask;
  const RowIndex::Head& HeadOf(uint64_t hash) const {
    return heads[static_cast<uint32_t>(hash >> 32) & bucket_mask];
  }
};

// Sets cells[i] to the index cell of ids[i] (or items[i]), or to nullptr if the id has no row. Requires at
// most kMaxLookup ids, whose locks the caller holds.
void FindCells(const Indexes& indexes, absl::Span<const uint64_t> ids, const RowIndex::Cell** cells);
void FindCells(const Indexes& indexes, absl::Span<const Grouping::Item> items, const RowIndex::Cell** cells);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_LOOKUP_H_
