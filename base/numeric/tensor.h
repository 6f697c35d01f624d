// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_NUMERIC_TENSOR_H_
#define TANDEM_BASE_NUMERIC_TENSOR_H_

// Views of arrays with an element type and a device, passed to collectives, codecs and transports. A view
// owns nothing. A function that takes a view says how long the caller must keep the memory alive.

#include <cstddef>
#include <type_traits>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace tandem {

// The device whose memory holds the data: the CPU or a GPU. A plain value.
struct Device {
  enum class Kind : uint8_t { kCpu = 0, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;  // the GPU's index; 0 for the CPU

  static Device Cpu() { return {}; }
  static Device Cuda(int index) { return {Kind::kCuda, index}; }
  friend bool operator==(const Device& a, const Device& b) { return a.kind == b.kind && a.index == b.index; }
};

// A read-only view of `count` contiguous elements of type `dtype` at `data`, in the memory of `device`.
// `data` may be nullptr if `count` is 0. Views are one-dimensional: transports and reductions do not use
// shapes. A plain value.
struct ConstTensorView {
  const void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
  Device device;

  ConstTensorView() = default;
  ConstTensorView(const void* data, size_t count, DType dtype, Device device = Device::Cpu())
      : data(data), count(count), dtype(dtype), device(device) {}
  // Converts from absl::Span, std::vector and std::array of an ElementType, on the CPU. The view of a
  // temporary vector is valid only until the end of the full expression, such as a function call.
  template <ElementType T>
  ConstTensorView(absl::Span<T> values)  // NOLINT: implicit, like absl::Span itself
      : data(values.data()), count(values.size()), dtype(DTypeOf<std::remove_const_t<T>>::value) {}
  template <typename C, ElementType T = typename C::value_type>
  requires(std::is_convertible_v<const C&, absl::Span<const T>> &&
           !std::is_convertible_v<const C*, const absl::Span<T>*> &&
           !std::is_convertible_v<const C*, const absl::Span<const T>*>)
      ConstTensorView(const C& values)  // NOLINT
      : ConstTensorView(absl::Span<const T>(values)) {}

  // Returns the size of the elements in bytes.
  size_t bytes() const { return count * SizeOf(dtype); }
};

// A writable view, otherwise like ConstTensorView, to which it converts implicitly.
struct TensorView {
  void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
  Device device;

  TensorView() = default;
  TensorView(void* data, size_t count, DType dtype, Device device = Device::Cpu())
      : data(data), count(count), dtype(dtype), device(device) {}
  template <ElementType T>
  requires(!std::is_const_v<T>) TensorView(absl::Span<T> values)  // NOLINT
      : data(values.data()), count(values.size()), dtype(DTypeOf<T>::value) {}
  // Converts from a std::vector or std::array that is not const and not a temporary.
  template <typename C, ElementType T = typename C::value_type>
  requires(std::is_constructible_v<absl::Span<T>, C&> && !std::is_same_v<C, absl::Span<T>>)
      TensorView(C& values)  // NOLINT
      : TensorView(absl::Span<T>(values)) {}

  operator ConstTensorView() const { return {data, count, dtype, device}; }  // NOLINT
  size_t bytes() const { return count * SizeOf(dtype); }
  // Returns a view of the elements [offset, offset + length), which must lie within this view. Does not
  // access them, so they may be on a GPU.
  TensorView Sub(size_t offset, size_t length) const {
    return {static_cast<char*>(data) + offset * SizeOf(dtype), length, dtype, device};
  }
};

}  // namespace tandem

#endif  // TANDEM_BASE_NUMERIC_TENSOR_H_
