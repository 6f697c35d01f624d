#ifndef TANDEM_COLLECTIVES_REDUCE_REDUCE_H_
#define TANDEM_COLLECTIVES_REDUCE_REDUCE_H_

// Element-wise reduction in the order of the ranks, with SIMD chosen at run time (Highway). Pure functions:
// whoever evaluates one, on whatever processor, gets the same bits (but for a NaN's sign and payload).

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// Unimplemented where the reduction has no meaning for the dtype (bitwise of floating point, kPremulSum of
// integers).
absl::Status SupportsReduction(ReduceOp op, DType dtype);

// Where the result goes: kStream writes past the caches, for results that are not read again soon and are
// larger than a cache (the same bits). No hint changes anything where `out` is one of the sources.
enum class WriteHint { kCache, kStream };

// out[i] = op over s of sources[s][i], i in [0, n), evaluated from the first source to the last. f16 and bf16
// are accumulated in f32 and rounded once. Min and max keep the earlier source's value where they compare
// neither smaller nor larger (NaN). kAvg divides the sum by `average_over`. For kPremulSum each source is
// multiplied by its factor first (factors.size() == sources.size(); else factors is empty). `out` may be one
// of the sources; else they must not overlap. Any alignment. There is at least one source.
void ReduceInRankOrder(ReduceOp op, DType dtype, absl::Span<const void* const> sources,
                       absl::Span<const double> factors, int average_over, size_t n, void* out,
                       WriteHint hint = WriteHint::kCache);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_REDUCE_REDUCE_H_
