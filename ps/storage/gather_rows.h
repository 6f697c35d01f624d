#ifndef TANDEM_PS_STORAGE_GATHER_ROWS_H_
#define TANDEM_PS_STORAGE_GATHER_ROWS_H_

// Looking many ids up and copying their embeddings, in one loop (lookup-inl.h).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "ps/storage/lookup.h"
#include "ps/storage/rows/row_pool.h"

namespace tandem::ps {

// What is copied of rows whose embeddings are `dim` numbers of `dtype` (kF32, kF16 or kBF16).
struct RowFormat {
  enum class Out {
    kFloats,
    // The same with stores that go around the caches, where rows are of whole lines in both: for memory that
    // another core has read before and will read next (base/copy_choice.h). They are done when the call
    // returns.
    kFloatsAround,
    kStored,
  };
  Out out;
  DType dtype;
  size_t dim;
  size_t stored_bytes() const { return dim * SizeOf(dtype); }
  size_t out_bytes() const { return out == Out::kStored ? stored_bytes() : dim * sizeof(float); }
};

// The embedding of ids[i] goes to out + i * form.out_bytes(), of any alignment of 4 (of 2 for kStored).
// first + i is added to `missing`, in order, for ids without a row, whose places read as zeros afterwards. At
// most kMaxLookup ids; the caller holds their locks.
void GatherRows(const Indexes& indexes, const RowAddress& address, absl::Span<const uint64_t> ids,
                const RowFormat& form, char* out, uint32_t first, std::vector<uint32_t>* missing);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_GATHER_ROWS_H_
