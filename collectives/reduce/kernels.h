// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_REDUCE_KERNELS_H_
#define TANDEM_COLLECTIVES_REDUCE_KERNELS_H_

// The SIMD kernels behind reduce.cc. Each kernel below runs on the best instruction set of the processor.

#include <cstddef>

#include "collectives/operation.h"

namespace tandem::collectives::internal {

// The arguments of one call of ReduceInRankOrder, checked, with n > 0.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  const void* const* sources = nullptr;
  size_t num_sources = 0;
  const double* factors = nullptr;  // of kPremulSum
  int average_over = 1;
  size_t n = 0;
  void* out = nullptr;
  bool stream = false;  // if true, `out` is aligned to its elements
};

// These support all operations but the bitwise ones.
void ReduceF32(const Reduction& r);
void ReduceF64(const Reduction& r);
void ReduceF16(const Reduction& r);
void ReduceBF16(const Reduction& r);

// These support sum, product, min and max. reduce.cc computes kAvg by dividing sums.
void ReduceU8(const Reduction& r);
void ReduceI8(const Reduction& r);
void ReduceI32(const Reduction& r);
void ReduceI64(const Reduction& r);

// Conversions of n elements; see WidenToF32 and NarrowFromF32.
void WidenF16(const void* in, size_t n, float* out);
void WidenBF16(const void* in, size_t n, float* out);
void NarrowF16(const float* in, size_t n, void* out);
void NarrowBF16(const float* in, size_t n, void* out);

// Reduces n bytes with a bitwise operation.
void ReduceBits(const Reduction& r);

}  // namespace tandem::collectives::internal

#endif  // TANDEM_COLLECTIVES_REDUCE_KERNELS_H_
