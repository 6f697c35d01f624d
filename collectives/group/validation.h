// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_VALIDATION_H_
#define TANDEM_COLLECTIVES_GROUP_VALIDATION_H_

// Checks the arguments of a collective call, as far as that needs no other rank. Pure functions, for any
// thread. Each returns OK, or InvalidArgument that says what is wrong and what is expected; the caller adds
// operation and group. A `what` is the argument's name for that text: "in". A check of one or two tensors
// that succeeds costs a few nanoseconds.

#include <cstdint>
#include <limits>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"

namespace tandem::collectives {

namespace internal {
// These build the errors of the checks below.
absl::Status BadTensor(absl::string_view what, const ConstTensorView& view);
absl::Status BadPair(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                     const ConstTensorView& b);
absl::Status BadCounts(absl::string_view what_a, size_t a, absl::string_view what_b, size_t b);
absl::Status BadMultiple(absl::string_view what_whole, size_t whole, absl::string_view what_part, size_t part,
                         int parts);
absl::Status BadRoot(int root, int world_size);
absl::Status BadOverlap(absl::string_view what_a, absl::string_view what_b, bool may_be_in_place);

// Returns true for a view that CheckTensor accepts.
inline bool IsTensor(const ConstTensorView& view) {
  const size_t size = SizeOf(view.dtype);
  return size > 0 && (view.data != nullptr || view.count == 0) &&
         view.count <= static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) / size;
}
// Returns true if the two share a byte.
inline bool Overlap(const ConstTensorView& a, const ConstTensorView& b) {
  const uintptr_t begin_a = reinterpret_cast<uintptr_t>(a.data),
                  begin_b = reinterpret_cast<uintptr_t>(b.data);
  return a.count > 0 && b.count > 0 && begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}
}  // namespace internal

// Checks that the dtype is known, that `data` is not null if there are elements, and that the size in bytes
// fits into ptrdiff_t.
inline absl::Status CheckTensor(absl::string_view what, const ConstTensorView& view) {
  return ABSL_PREDICT_TRUE(internal::IsTensor(view)) ? absl::OkStatus() : internal::BadTensor(what, view);
}
// Checks that both pass CheckTensor and have the same dtype and device. Their counts may differ.
inline absl::Status CheckPair(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                              const ConstTensorView& b) {
  const bool good =
      internal::IsTensor(a) && internal::IsTensor(b) && a.dtype == b.dtype && a.device == b.device;
  return ABSL_PREDICT_TRUE(good) ? absl::OkStatus() : internal::BadPair(what_a, a, what_b, b);
}
// Checks that both have the same number of elements.
inline absl::Status CheckSameCount(absl::string_view what_a, const ConstTensorView& a,
                                   absl::string_view what_b, const ConstTensorView& b) {
  return ABSL_PREDICT_TRUE(a.count == b.count) ? absl::OkStatus()
                                               : internal::BadCounts(what_a, a.count, what_b, b.count);
}
// Checks that `whole` has `parts` times as many elements as `part`. Requires parts > 0.
inline absl::Status CheckMultiple(absl::string_view what_whole, const ConstTensorView& whole,
                                  absl::string_view what_part, const ConstTensorView& part, int parts) {
  // A comparison of products could overflow.
  const size_t ranks = static_cast<size_t>(parts);
  const bool good = whole.count % ranks == 0 && whole.count / ranks == part.count;
  return ABSL_PREDICT_TRUE(good)
             ? absl::OkStatus()
             : internal::BadMultiple(what_whole, whole.count, what_part, part.count, parts);
}
// Checks that 0 <= root < world_size.
inline absl::Status CheckRoot(int root, int world_size) {
  return ABSL_PREDICT_TRUE(root >= 0 && root < world_size) ? absl::OkStatus()
                                                           : internal::BadRoot(root, world_size);
}
// Checks the peer of a point-to-point operation of `rank`: another rank of the group or, if `any`, kAnySource
// in a group of at least two ranks.
absl::Status CheckPeer(int peer, int rank, int world_size, bool any);
// Checks that the timeout is not negative. Zero stands for the group's timeout.
absl::Status CheckTimeout(absl::Duration timeout);

// Checks that the two share no byte, or that `a` begins exactly at `in_place`, the address in `b` at which an
// in-place call has `a` (nullptr: no overlap is allowed).
inline absl::Status CheckApart(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                               const ConstTensorView& b, const void* in_place) {
  const bool good = (in_place != nullptr && a.data == in_place) || !internal::Overlap(a, b);
  return ABSL_PREDICT_TRUE(good) ? absl::OkStatus()
                                 : internal::BadOverlap(what_a, what_b, in_place != nullptr);
}

// Checks that there are `world_size` tensors, which pass CheckTensor and have the dtype and device of `like`.
// Their counts may differ.
absl::Status CheckList(absl::string_view what, absl::Span<const ConstTensorView> views, int world_size,
                       const ConstTensorView& like);
absl::Status CheckList(absl::string_view what, absl::Span<const TensorView> views, int world_size,
                       const ConstTensorView& like);
// Checks that no two tensors share a byte. Sorts the tensors by address.
absl::Status CheckDistinct(absl::string_view what, absl::Span<const TensorView> views);
// Checks that no two outputs share a byte, and that no output shares one with `in`. Exception for calls in
// place: `in` may overlap outs[own] if both begin at the same address. `own` -1: no exception.
absl::Status CheckOutputsApart(absl::Span<const TensorView> outs, const ConstTensorView& in, int own);
// Checks that no input shares a byte with `out`; inputs may overlap each other. Exception for calls in place:
// `out` may overlap ins[own] if both begin at the same address. `own` -1: no exception.
absl::Status CheckInputsApart(absl::Span<const ConstTensorView> ins, const ConstTensorView& out, int own);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_VALIDATION_H_
