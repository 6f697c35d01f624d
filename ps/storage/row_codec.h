#ifndef TANDEM_PS_STORAGE_ROW_CODEC_H_
#define TANDEM_PS_STORAGE_ROW_CODEC_H_

// Embeddings from and to the number format in which rows are stored, many a call so that the choice of
// instruction set is paid for once. The same bits with every instruction set; to nearest, those of
// base/numeric/float16.h, but that a number beyond the format's range becomes its largest finite one: one
// wild step must not leave an infinity behind.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace tandem::ps {

// out[i * dim ...] = the `dim` numbers at rows[i]; rows that are nullptr are left out (their place is not
// written). dtype is kF32, kF16 or kBF16. Any alignment of 2 (4 for kF32) will do.
void LoadRows(DType dtype, absl::Span<const char* const> rows, size_t dim, float* out);

// The `dim` numbers at rows[i] = values[i * dim ...]. With `rounding_keys`, one a row, numbers are rounded up
// or down by chance, which is a function of (key, element); else to nearest, ties to even. NaN stays NaN.
void StoreRows(DType dtype, absl::Span<char* const> rows, size_t dim, const float* values,
               const uint64_t* rounding_keys);

}  // namespace tandem::ps

#endif  // TANDEM_PS_STORAGE_ROW_CODEC_H_
