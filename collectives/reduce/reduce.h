// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_REDUCE_REDUCE_H_
#define TANDEM_COLLECTIVES_REDUCE_REDUCE_H_

// Element-wise reduction in the order of the ranks, with SIMD chosen at run time (Highway). Pure functions:
// every rank gets the same bits on every processor (except for a NaN's sign and payload).

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// Returns OK, or Unimplemented if the reduction has no meaning for the dtype (bitwise operations on floating
// point, kPremulSum on integers).
absl::Status SupportsReduction(ReduceOp op, DType dtype);

// How the result is written. kStream bypasses the caches, for results that are larger than a cache and not
// read again soon; the bits are the same. The hint has no effect if `out` is one of the sources.
enum class WriteHint { kCache, kStream };

// out[i] = op over s of sources[s][i] for i in [0, n), evaluated from the first source to the last.
//
//   - f16 and bf16 are accumulated in f32 and rounded once.
//   - Min and max keep the earlier source's value if the values compare neither smaller nor larger (NaN).
//   - kAvg divides the sum by `average_over`.
//   - kPremulSum first multiplies each source by its factor: factors.size() == sources.size(). For other
//     operations `factors` is empty.
//
// `out` may be one of the sources; otherwise they must not overlap. Any alignment is allowed. Requires at
// least one source.
void ReduceInRankOrder(ReduceOp op, DType dtype, absl::Span<const void* const> sources,
                       absl::Span<const double> factors, int average_over, size_t n, void* out,
                       WriteHint hint = WriteHint::kCache);

// Convert n elements between f16 or bf16 and f32, with SIMD. To f32 the value is exact; from f32 it is
// rounded to the nearest, ties to even. Any alignment is allowed. The buffers must not overlap, but
// NarrowFromF32 may write to the address that it reads from.
void WidenToF32(DType dtype, const void* in, size_t n, float* out);
void NarrowFromF32(DType dtype, const float* in, size_t n, void* out);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_REDUCE_REDUCE_H_
