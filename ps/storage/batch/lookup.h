#ifndef TANDEM_PS_STORAGE_BATCH_LOOKUP_H_
#define TANDEM_PS_STORAGE_BATCH_LOOKUP_H_

// Looking many ids up at once. The index lines of some thirty ids are on their way from memory while those
// that came are searched, without a branch that depends on what is found: an id that is not in the line where
// it should be (one in fifteen) is noted, its next line is asked for, and it is looked at in the end.
// Guessing wrong and waiting for that line had been half of a lookup's time. Stages are loops of their own
// over up to kMaxLookup ids; looking up, asking for rows and copying them in one loop, in which each waits
// for the others' loads, was a quarter slower.

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "ps/storage/batch/grouping.h"
#include "ps/storage/rows/row_index.h"
#include "ps/storage/rows/row_pool.h"

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

// rows[i] = the row of ids[i], or nullptr, for a caller that reads the first `row_bytes` of each.
// ids.size() <= kMaxLookup. found(begin, end) is called for some ids at a time, in order, when their rows
// have been asked for; it should read those of the call before while these, and the next ids' lines, are on
// their way. (Looking all ids up before the first row is asked for was a seventh slower.)
void FindRows(const Indexes& indexes, const RowAddress& address, absl::Span<const uint64_t> ids,
              size_t row_bytes, const char** rows, absl::FunctionRef<void(size_t begin, size_t end)> found);
// cells[i] = the cell of ids[i] or items[i], or nullptr. At most kMaxLookup of them.
void FindCells(const Indexes& indexes, absl::Span<const uint64_t> ids, const RowIndex::Cell** cells);
void FindCells(const Indexes& indexes, absl::Span<const Grouping::Item> items, const RowIndex::Cell** cells);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_BATCH_LOOKUP_H_
