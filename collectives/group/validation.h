#ifndef TANDEM_COLLECTIVES_GROUP_VALIDATION_H_
#define TANDEM_COLLECTIVES_GROUP_VALIDATION_H_

// What this rank alone can see to be wrong with a call. Pure functions: InvalidArgument says what is wrong
// and what is expected; the caller adds operation and group. They cost a few nanoseconds when all is well.

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/tensor.h"

namespace tandem::collectives {

// A known dtype, and memory where there are elements.
absl::Status CheckTensor(absl::string_view what, const ConstTensorView& view);
// Both are tensors, of one dtype on one device.
absl::Status CheckPair(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                       const ConstTensorView& b);
absl::Status CheckSameCount(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                            const ConstTensorView& b);
// `whole` has `parts` times as many elements as `part`.
absl::Status CheckMultiple(absl::string_view what_whole, const ConstTensorView& whole,
                           absl::string_view what_part, const ConstTensorView& part, int parts);
absl::Status CheckRoot(int root, int world_size);
// Of a point-to-point operation. `any`: kAnySource will do.
absl::Status CheckPeer(int peer, int rank, int world_size, bool any);
absl::Status CheckTimeout(absl::Duration timeout);

// The two share no byte; they may where `a` begins exactly at `in_place` (nullptr: nowhere).
absl::Status CheckApart(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                        const ConstTensorView& b, const void* in_place);

// One tensor a rank, all of the dtype and device of `like`.
absl::Status CheckList(absl::string_view what, absl::Span<const ConstTensorView> views, int world_size,
                       const ConstTensorView& like);
absl::Status CheckList(absl::string_view what, absl::Span<const TensorView> views, int world_size,
                       const ConstTensorView& like);
// No two share a byte.
absl::Status CheckDistinct(absl::string_view what, absl::Span<const TensorView> views);
// No two of the outputs, and no output and `in`, share a byte; but in == outs[own] in place.
absl::Status CheckOutputsApart(absl::Span<const TensorView> outs, const ConstTensorView& in, int own);
absl::Status CheckInputsApart(absl::Span<const ConstTensorView> ins, const ConstTensorView& out, int own);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_VALIDATION_H_
