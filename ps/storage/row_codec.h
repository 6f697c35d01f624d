// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_STORAGE_ROW_CODEC_H_
#define TANDEM_PS_STORAGE_ROW_CODEC_H_

// LoadRows and StoreRows convert embeddings between f32 and the number format in which rows are stored. One
// call converts many rows, so that dispatch on the instruction set is paid for once. The resulting bits are
// the same with every instruction set. Rounding to nearest gives the bits of base/numeric/float16.h, except
// that a number beyond the format's range becomes its largest finite number, so that one wild step leaves no
// infinity.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace tandem::ps {

// Writes the `dim` numbers of rows[i] to out[i * dim, (i + 1) * dim). Does not write the part of a row that
// is nullptr. `dtype` is kF32, kF16 or kBF16. Rows must be aligned to 2 bytes (4 for kF32).
void LoadRows(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out);

// Writes values[i * dim, (i + 1) * dim) to rows[i]. `rounding_keys` is nullptr or has one key for each row.
// With keys, numbers are rounded up or down stochastically, as a function of (key, element); without, to
// nearest, ties to even. NaN stays NaN.
void StoreRows(DType dtype, absl::Span<char* const> rows, size_t dim, const float* values,
               const uint64_t* rounding_keys);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_CODEC_H_
