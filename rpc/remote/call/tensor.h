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

// Elements in row-major order and their shape, on the CPU. A value: copies share the elements, and who
// changes them while others share them gets a copy of its own. What was received stays as it came, in pieces
// perhaps: it is put together when somebody looks at the elements, and not when it is only passed on.
// Different copies may be used by different threads.
class Tensor {
 public:
  using Shape = std::vector<int64_t>;

  Tensor() : Tensor(DType::kF32, {0}, nullptr) {}
  // Of prod(shape) elements with unspecified contents. No dimension may be negative.
  static Tensor Allocate(DType dtype, Shape shape);
  // Over `memory` (as from Agent::RequestMemory), which nobody else writes to any more.
  static Tensor Over(std::shared_ptr<char> memory, DType dtype, Shape shape);
  static Tensor Copy(ConstTensorView view, Shape shape);
  // Takes over the vector's memory. One dimension.
  template <ElementType T>
  static Tensor Of(std::vector<T> values);
  // Over `bytes`. InvalidArgument if they are not prod(shape) elements.
  static absl::StatusOr<Tensor> FromBytes(DType dtype, Shape shape, Bytes bytes);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  size_t count() const { return count_; }  // of elements
  size_t bytes() const { return count_ * SizeOf(dtype_); }

  const void* data() const;
  ConstTensorView view() const { return {data(), count_, dtype_}; }
  // InvalidArgument if they are of another type. Valid as long as a copy of the tensor is, unchanged.
  template <ElementType T>
  absl::StatusOr<absl::Span<const T>> values() const;
  template <ElementType T>
  absl::StatusOr<absl::Span<T>> mutable_values();
  void* mutable_data();

  // "f32[2, 3]"
  std::string ToString() const;
  // The elements as they are to be sent: shared, not copied.
  Bytes Chunks() const;

 private:
  struct Storage {
    Bytes chunks;
    std::shared_ptr<char> memory;  // the elements; before `together`: only where there are no pieces
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
