#ifndef TANDEM_PS_STORAGE_LOOKUP_H_
#define TANDEM_PS_STORAGE_LOOKUP_H_

// Looking many ids up at once, so that the memory works on all of them at a time (how: lookup-inl.h).

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "ps/storage/grouping.h"
#include "ps/storage/rows/row_index.h"

namespace tandem::ps {

inline constexpr size_t kMaxLookup = 1024;

// The indexes of a table's buckets; the caller holds their locks. A plain value.
struct Indexes {
  const RowIndex::Head* heads;  // [bucket_mask + 1]
  uint32_t bucket_mask;
  const RowIndex::Head& HeadOf(uint64_t hash) const {
    return heads[static_cast<uint32_t>(hash >> 32) & bucket_mask];
  }
};

// cells[i] = the cell of ids[i] or items[i], or nullptr. At most kMaxLookup of them.
void FindCells(const Indexes& indexes, absl::Span<const uint64_t> ids, const RowIndex::Cell** cells);
void FindCells(const Indexes& indexes, absl::Span<const Grouping::Item> items, const RowIndex::Cell** cells);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_LOOKUP_H_
