// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/validation.h"

#include <algorithm>
#include <cstdint>

#include "absl/base/optimization.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/operation.h"

namespace tandem::collectives {
namespace {

absl::Status Invalid(std::string text) { return absl::InvalidArgumentError(std::move(text)); }

std::string Show(const Device& device) {
  return device.kind == Device::Kind::kCpu ? "the CPU" : absl::StrCat("GPU ", device.index);
}

std::string Show(const ConstTensorView& view) { return absl::StrCat(Name(view.dtype), " x ", view.count); }

template <typename View>
absl::Status CheckViews(absl::string_view what, absl::Span<const View> views, int world_size,
                        const ConstTensorView& like) {
  if (views.size() != static_cast<size_t>(world_size)) {
    return Invalid(absl::StrCat(what, " has ", views.size(), " tensors; it must have one for each of the ",
                                world_size, " ranks"));
  }
  for (int rank = 0; rank < world_size; ++rank) {
    const ConstTensorView view = views[rank];
    TANDEM_RETURN_IF_ERROR(CheckTensor(what, view));
    if (view.dtype != like.dtype || !(view.device == like.device)) {
      return Invalid(absl::StrCat(what, "[", rank, "] is ", Name(view.dtype), " on ", Show(view.device),
                                  ", but the other side is ", Name(like.dtype), " on ", Show(like.device),
                                  "; all must be of one dtype on one device"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

namespace internal {

absl::Status BadTensor(absl::string_view what, const ConstTensorView& view) {
  if (SizeOf(view.dtype) == 0) {
    return Invalid(absl::StrCat(what, " has no known dtype (", static_cast<int>(view.dtype), ")"));
  }
  if (view.data == nullptr) {
    return Invalid(absl::StrCat(what, " is a null pointer to ", view.count, " elements"));
  }
  return Invalid(absl::StrCat(what, " has ", view.count, " elements, more than there is memory"));
}

absl::Status BadPair(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                     const ConstTensorView& b) {
  if (!IsTensor(a)) return BadTensor(what_a, a);
  if (!IsTensor(b)) return BadTensor(what_b, b);
  if (a.dtype != b.dtype) {
    return Invalid(absl::StrCat(what_a, " is ", Show(a), ", ", what_b, " is ", Show(b),
                                "; they must have the same dtype"));
  }
  return Invalid(absl::StrCat(what_a, " is on ", Show(a.device), ", ", what_b, " is on ", Show(b.device),
                              "; they must be on the same device"));
}

absl::Status BadCounts(absl::string_view what_a, size_t a, absl::string_view what_b, size_t b) {
  return Invalid(absl::StrCat(what_a, " has ", a, " elements, ", what_b, " has ", b,
                              "; they must have the same number"));
}

absl::Status BadMultiple(absl::string_view what_whole, size_t whole, absl::string_view what_part, size_t part,
                         int parts) {
  return Invalid(absl::StrCat(what_whole, " has ", whole, " elements; with ", part, " in ", what_part,
                              " and ", parts, " ranks it must have ", parts, " x ", part));
}

absl::Status BadRoot(int root, int world_size) {
  return Invalid(absl::StrCat("root ", root, " is no rank of a group of ", world_size,
                              "; ranks go from 0 to ", world_size - 1));
}

absl::Status BadOverlap(absl::string_view what_a, absl::string_view what_b, bool may_be_in_place) {
  return Invalid(
      absl::StrCat(what_a, " and ", what_b, " overlap", may_be_in_place ? " otherwise than in place" : ""));
}

}  // namespace internal

absl::Status CheckPeer(int peer, int rank, int world_size, bool any) {
  if (ABSL_PREDICT_TRUE(peer >= 0 && peer < world_size && peer != rank)) return absl::OkStatus();
  if (any && peer == kAnySource && world_size > 1) return absl::OkStatus();
  if (peer == rank) return Invalid(absl::StrCat("peer ", peer, " is this rank itself; copy instead"));
  return Invalid(absl::StrCat("peer ", peer, " is no other rank of a group of ", world_size,
                              any ? "; give a rank or kAnySource" : ""));
}

absl::Status CheckTimeout(absl::Duration timeout) {
  if (ABSL_PREDICT_TRUE(timeout >= absl::ZeroDuration())) return absl::OkStatus();
  return Invalid(absl::StrCat("the timeout is ", absl::FormatDuration(timeout),
                              "; it must be positive, or zero for the group's"));
}

absl::Status CheckList(absl::string_view what, absl::Span<const ConstTensorView> views, int world_size,
                       const ConstTensorView& like) {
  return CheckViews(what, views, world_size, like);
}

absl::Status CheckList(absl::string_view what, absl::Span<const TensorView> views, int world_size,
                       const ConstTensorView& like) {
  return CheckViews(what, views, world_size, like);
}

absl::Status CheckDistinct(absl::string_view what, absl::Span<const TensorView> views) {
  struct Range {
    uintptr_t begin, end;
    size_t index;
  };
  absl::InlinedVector<Range, 8> ranges;
  for (size_t i = 0; i < views.size(); ++i) {
    if (views[i].count == 0) continue;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(views[i].data);
    ranges.push_back({begin, begin + views[i].bytes(), i});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin >= ranges[i - 1].end) continue;
    const auto [low, high] = std::minmax(ranges[i].index, ranges[i - 1].index);
    return Invalid(absl::StrCat(what, "[", low, "] and ", what, "[", high, "] overlap"));
  }
  return absl::OkStatus();
}

absl::Status CheckOutputsApart(absl::Span<const TensorView> outs, const ConstTensorView& in, int own) {
  for (int rank = 0; rank < static_cast<int>(outs.size()); ++rank) {
    if (!internal::Overlap(in, outs[rank])) continue;
    TANDEM_RETURN_IF_ERROR(CheckApart("in", in, absl::StrCat("outs[", rank, "]"), outs[rank],
                                      rank == own ? outs[rank].data : nullptr));
  }
  return CheckDistinct("outs", outs);
}

absl::Status CheckInputsApart(absl::Span<const ConstTensorView> ins, const ConstTensorView& out, int own) {
  for (int rank = 0; rank < static_cast<int>(ins.size()); ++rank) {
    if (!internal::Overlap(out, ins[rank])) continue;
    TANDEM_RETURN_IF_ERROR(CheckApart("out", out, absl::StrCat("ins[", rank, "]"), ins[rank],
                                      rank == own ? ins[rank].data : nullptr));
  }
  return absl::OkStatus();
}

}  // namespace tandem::collectives
