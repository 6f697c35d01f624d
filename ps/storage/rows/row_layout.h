// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROWS_ROW_LAYOUT_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_LAYOUT_H_

// RowLayout describes a row in memory. A row begins at a multiple of 4 bytes and consists of, in this order:
//
//   embedding         dim x f32, f16 or bf16, padded to a multiple of 4 bytes
//   optimizer state   state_floats x f32
//   count             u32, as Eviction::Counted returns it; only in tables that evict by it
//
// The id and the version of a row are in the index (row_index.h).

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/numeric/dtype.h"

namespace tandem::ps {

// The layout that all rows of a table share. Sizes and offsets ending in _bytes or _offset, and the stride,
// are in bytes. A plain value.
struct RowLayout {
  // `state_floats` is the optimizer state's size in floats. `dtype` is kF32, kF16 or kBF16. `counted`: rows
  // have a count. Requires dim > 0.
  RowLayout(size_t dim, size_t state_floats, DType dtype = DType::kF32, bool counted = false);

  size_t dim;
  size_t state_floats;
  DType dtype;             // of the embedding: kF32, kF16 or kBF16
  size_t embedding_bytes;  // without the padding
  size_t state_offset;
  size_t count_offset;  // 0: rows have no count
  size_t row_bytes;     // a multiple of 4
  // Distance from one row to the next, a multiple of 4: row_bytes or up to 64 more, so that the embeddings
  // spread over all memory channels.
  size_t stride;

  bool f32() const { return dtype == DType::kF32; }
  // Returns the number of values in a row, whatever their type in memory; the count is not one.
  size_t row_floats() const { return dim + state_floats; }

  float* state(char* row) const { return reinterpret_cast<float*>(row + state_offset); }
  const float* state(const char* row) const { return reinterpret_cast<const float*>(row + state_offset); }
  // These return 0, and do nothing, if rows have no count.
  uint32_t count(const char* row) const {
    uint32_t count = 0;
    if (count_offset != 0) std::memcpy(&count, row + count_offset, sizeof(count));
    return count;
  }
  void set_count(char* row, uint32_t count) const {
    if (count_offset != 0) std::memcpy(row + count_offset, &count, sizeof(count));
  }
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROWS_ROW_LAYOUT_H_
