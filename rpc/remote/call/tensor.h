// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_REMOTE_CALL_TENSOR_H_
#define TANDEM_RPC_REMOTE_CALL_TENSOR_H_

// Tensors as arguments and results of remote functions.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/call_once.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "base/numeric/dtype.h"
#include "base/numeric/tensor.h"

namespace tandem::rpc::remote {

// A shape and its elements in row-major order, on the CPU.
//
// A value type: copies share the elements, and a change of a shared tensor copies them first. A received
// tensor stays as it arrived, perhaps in several chunks. The first access to its elements joins the chunks;
// passing the tensor on does not. Different copies may be used by different threads.
class Tensor {
 public:
  using Shape = std::vector<int64_t>;

  Tensor() : Tensor(DType::kF32, {0}, nullptr) {}
  // Returns a tensor of prod(shape) elements with unspecified contents. No dimension may be negative.
  static Tensor Allocate(DType dtype, Shape shape);
  // Returns a tensor that uses `memory`, such as that of rpc::Channel::RequestMemory. The memory must hold
  // prod(shape) elements, and only the tensor may write to it from now on.
  static Tensor Over(std::shared_ptr<char> memory, DType dtype, Shape shape);
  // Returns a tensor with a copy of the elements. prod(shape) must be their number.
  static Tensor Copy(ConstTensorView view, Shape shape);
  // Returns a tensor of one dimension that takes over the vector's memory.
  template <ElementType T>
  static Tensor Of(std::vector<T> values);
  // Returns a tensor that shares `bytes`. InvalidArgument: they are not prod(shape) elements.
  static absl::StatusOr<Tensor> FromBytes(DType dtype, Shape shape, Bytes bytes);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  size_t count() const { return count_; }  // number of elements
  size_t bytes() const { return count_ * SizeOf(dtype_); }

  // Returns the elements, or nullptr if there are none. The first call on a received tensor may copy them.
  const void* data() const;
  ConstTensorView view() const { return {data(), count_, dtype_}; }
  // Returns the elements; InvalidArgument if they have another type. The spans are valid while a copy of the
  // tensor exists and is not changed.
  template <ElementType T>
  absl::StatusOr<absl::Span<const T>> values() const;
  template <ElementType T>
  absl::StatusOr<absl::Span<T>> mutable_values();
  // Returns the elements for writing, after copying them if other tensors share them.
  void* mutable_data();

  // "f32[2, 3]"
  std::string ToString() const;
  // Returns the elements for sending: shared, not copied.
  Bytes Chunks() const;

 private:
  struct Storage {
    Bytes chunks;
    // The elements in one array. Null for a received tensor until data() has copied its chunks.
    std::shared_ptr<char> memory;
    absl::once_flag together;
    const char* data = nullptr;
    bool writable = false;
  };
  Tensor(DType dtype, Shape shape, std::shared_ptr<Storage> storage);
  absl::Status WrongType(DType wanted) const;

  DType dtype_;
  Shape shape_;
  size_t count_;
  std::shared_ptr<Storage> storage_;  // null: no elements
};

template <ElementType T>
Tensor Tensor::Of(std::vector<T> values) {
  auto kept = std::make_shared<std::vector<T>>(std::move(values));
  const int64_t count = static_cast<int64_t>(kept->size());
  std::shared_ptr<char> memory(kept, reinterpret_cast<char*>(kept->data()));
  return Over(std::move(memory), DTypeOf<T>::value, {count});
}

template <ElementType T>
absl::StatusOr<absl::Span<const T>> Tensor::values() const {
  if (DTypeOf<T>::value != dtype_) return WrongType(DTypeOf<T>::value);
  return absl::MakeConstSpan(static_cast<const T*>(data()), count_);
}

template <ElementType T>
absl::StatusOr<absl::Span<T>> Tensor::mutable_values() {
  if (DTypeOf<T>::value != dtype_) return WrongType(DTypeOf<T>::value);
  return absl::MakeSpan(static_cast<T*>(mutable_data()), count_);
}

}  // namespace tandem::rpc::remote

#endif  // TANDEM_RPC_REMOTE_CALL_TENSOR_H_
