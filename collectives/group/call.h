// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_CALL_H_
#define TANDEM_COLLECTIVES_GROUP_CALL_H_

// Call is an Operation together with the arrays of parts that it points to.

#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// A synchronous call keeps it on the stack, without allocations up to eight ranks; an asynchronous call moves
// it into the queue.
class Call {
 public:
  Call(OpKind kind, DType dtype, Device device) {
    operation.kind = kind;
    operation.dtype = dtype;
    operation.device = device;
  }
  Call(Call&& other) noexcept
      : operation(other.operation), ins_(std::move(other.ins_)), outs_(std::move(other.outs_)) {
    operation.ins = ins_;
    operation.outs = outs_;
  }
  Call& operator=(Call&&) = delete;

  void SetIns(absl::Span<const ConstTensorView> views) {
    operation.even = false;
    for (const ConstTensorView& view : views) ins_.push_back({view.data, view.count});
    operation.ins = ins_;
  }
  void SetOuts(absl::Span<const TensorView> views) {
    operation.even = false;
    for (const TensorView& view : views) outs_.push_back({view.data, view.count});
    operation.outs = outs_;
  }
  // Splits `view` into `parts` slices of the same size; `parts` must divide view.count.
  void SliceIns(const ConstTensorView& view, int parts) {
    const size_t count = view.count / parts, bytes = count * SizeOf(view.dtype);
    for (int i = 0; i < parts; ++i)
      ins_.push_back(
          {view.data == nullptr ? nullptr : static_cast<const char*>(view.data) + i * bytes, count});
    operation.ins = ins_;
  }
  void SliceOuts(const TensorView& view, int parts) {
    const size_t count = view.count / parts, bytes = count * SizeOf(view.dtype);
    for (int i = 0; i < parts; ++i)
      outs_.push_back({view.data == nullptr ? nullptr : static_cast<char*>(view.data) + i * bytes, count});
    operation.outs = outs_;
  }

  Operation operation;

 private:
  absl::InlinedVector<ConstPart, 8> ins_;
  absl::InlinedVector<Part, 8> outs_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_CALL_H_
