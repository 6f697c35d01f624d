// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROWS_ROW_LAYOUT_H_
#define TANDEM_PS_STORAGE_ROWS_ROW_LAYOUT_H_

// RowLayout describes a row in memory. A row consists of, in this order:
//
//   embedding         dim x f32, f16 or bf16, padded to 4 bytes
//   optimizer state   state_floats x f32
//   count             u32, the number of updates; only in tables that evict by it
//
// The id and the version of a row are in the index (row_index.h).

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/numeric/dtype.h"

namespace tandem::ps {

// The layout that all rows of a table share. A plain value.
struct RowLayout {
  RowLayout(size_t dim, size_t state_floats, DType dtype = DType::kF32, bool counted = false);

  size_t dim;
  size_t state_floats;
  DType dtype;  // of the embedding: kF32, kF16 or kBF16
  size_t embedding_bytes;
  size_t state_offset;
  size_t count_offset;  // 0: rows have no count
  size_t row_bytes;     // a multiple of 4
  size_t stride;        // bytes from one row to the next: row_bytes or slightly more, a multiple of 4

  bool f32() const { return dtype == DType::kF32; }
  size_t row_floats() const { return dim + state_floats; }

  float* state(char* row) const { return reinterpret_cast<float*>(row + state_offset); }
  const float* state(const char* row) const { return reinterpret_cast<const float*>(row + state_offset); }
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
