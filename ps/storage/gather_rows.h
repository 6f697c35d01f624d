// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_GATHER_ROWS_H_
#define TANDEM_PS_STORAGE_GATHER_ROWS_H_

// GatherRows looks many ids up and copies their embeddings, in one loop (see lookup-inl.h for how).

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "ps/storage/lookup.h"
#include "ps/storage/rows/row_pool.h"

namespace tandem::ps {

// The format of embeddings in the table and in the output. A plain value.
struct RowFormat {
  enum class Out {
    kFloats,  // f32 numbers
    // f32 numbers written with streaming stores, which bypass the caches, if `dtype` is kF32, rows have a
    // common length and `out` begins at a cache line; else as kFloats. For memory that another core has read
    // before and will read next (base/copy_choice.h). The stores are complete when the call returns.
    kFloatsAround,
    kStored,  // the bits as they are stored
  };
  Out out;
  DType dtype;  // of the stored embedding: kF32, kF16 or kBF16
  size_t dim;   // numbers in an embedding
  size_t stored_bytes() const { return dim * SizeOf(dtype); }
  size_t out_bytes() const { return out == Out::kStored ? stored_bytes() : dim * sizeof(float); }
};

// Copies the embedding of ids[i] to out + i * form.out_bytes(). Appends first + i to `missing`, in ascending
// order, for each id without a row, and fills its part of `out` with zeros. Requires at most kMaxLookup ids,
// whose locks the caller holds, and an `out` aligned to 4 bytes (2 for kStored).
void GatherRows(const Indexes& indexes, const RowAddress& address, absl::Span<const uint64_t> ids,
                const RowFormat& form, char* out, uint32_t first, std::vector<uint32_t>* missing);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_GATHER_ROWS_H_
