#include "collectives/group/validation.h"

#include <algorithm>
#include <cstdint>
#include <limits>

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

bool Overlap(const ConstTensorView& a, const ConstTensorView& b) {
  const uintptr_t begin_a = reinterpret_cast<uintptr_t>(a.data),
                  begin_b = reinterpret_cast<uintptr_t>(b.data);
  return a.count > 0 && b.count > 0 && begin_a < begin_b + b.bytes() && begin_b < begin_a + a.bytes();
}

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

absl::Status CheckTensor(absl::string_view what, const ConstTensorView& view) {
  const size_t size = SizeOf(view.dtype);
  if (ABSL_PREDICT_FALSE(size == 0)) {
    return Invalid(absl::StrCat(what, " has no known dtype (", static_cast<int>(view.dtype), ")"));
  }
  if (ABSL_PREDICT_FALSE(view.data == nullptr && view.count > 0)) {
    return Invalid(absl::StrCat(what, " is a null pointer to ", view.count, " elements"));
  }
  if (ABSL_PREDICT_FALSE(view.count > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) / size)) {
    return Invalid(absl::StrCat(what, " has ", view.count, " elements, more than there is memory"));
  }
  return absl::OkStatus();
}

absl::Status CheckPair(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                       const ConstTensorView& b) {
  TANDEM_RETURN_IF_ERROR(CheckTensor(what_a, a));
  TANDEM_RETURN_IF_ERROR(CheckTensor(what_b, b));
  if (ABSL_PREDICT_FALSE(a.dtype != b.dtype)) {
    return Invalid(absl::StrCat(what_a, " is ", Show(a), ", ", what_b, " is ", Show(b),
                                "; they must have the same dtype"));
  }
  if (ABSL_PREDICT_FALSE(!(a.device == b.device))) {
    return Invalid(absl::StrCat(what_a, " is on ", Show(a.device), ", ", what_b, " is on ", Show(b.device),
                                "; they must be on the same device"));
  }
  return absl::OkStatus();
}

absl::Status CheckSameCount(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                            const ConstTensorView& b) {
  if (ABSL_PREDICT_TRUE(a.count == b.count)) return absl::OkStatus();
  return Invalid(absl::StrCat(what_a, " has ", a.count, " elements, ", what_b, " has ", b.count,
                              "; they must have the same number"));
}

absl::Status CheckMultiple(absl::string_view what_whole, const ConstTensorView& whole,
                           absl::string_view what_part, const ConstTensorView& part, int parts) {
  // Not a product, which could wrap.
  const size_t ranks = static_cast<size_t>(parts);
  if (ABSL_PREDICT_TRUE(whole.count % ranks == 0 && whole.count / ranks == part.count))
    return absl::OkStatus();
  return Invalid(absl::StrCat(what_whole, " has ", whole.count, " elements; with ", part.count, " in ",
                              what_part, " and ", parts, " ranks it must have ", parts, " x ", part.count));
}

absl::Status CheckRoot(int root, int world_size) {
  if (ABSL_PREDICT_TRUE(root >= 0 && root < world_size)) return absl::OkStatus();
  return Invalid(absl::StrCat("root ", root, " is no rank of a group of ", world_size,
                              "; ranks go from 0 to ", world_size - 1));
}

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

absl::Status CheckApart(absl::string_view what_a, const ConstTensorView& a, absl::string_view what_b,
                        const ConstTensorView& b, const void* in_place) {
  if (ABSL_PREDICT_TRUE(!Overlap(a, b))) return absl::OkStatus();
  if (in_place != nullptr && a.data == in_place) return absl::OkStatus();
  return Invalid(absl::StrCat(what_a, " and ", what_b, " overlap",
                              in_place != nullptr ? " otherwise than in place" : ""));
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
    if (!Overlap(in, outs[rank])) continue;
    TANDEM_RETURN_IF_ERROR(CheckApart("in", in, absl::StrCat("outs[", rank, "]"), outs[rank],
                                      rank == own ? outs[rank].data : nullptr));
  }
  return CheckDistinct("outs", outs);
}

absl::Status CheckInputsApart(absl::Span<const ConstTensorView> ins, const ConstTensorView& out, int own) {
  for (int rank = 0; rank < static_cast<int>(ins.size()); ++rank) {
    if (!Overlap(out, ins[rank])) continue;
    TANDEM_RETURN_IF_ERROR(CheckApart("out", out, absl::StrCat("ins[", rank, "]"), ins[rank],
                                      rank == own ? ins[rank].data : nullptr));
  }
  return absl::OkStatus();
}

}  // namespace tandem::collectives
