#ifndef TANDEM_BASE_NUMERIC_TENSOR_H_
#define TANDEM_BASE_NUMERIC_TENSOR_H_

// Views of element arrays with their type and device: what collectives, codecs and transports are handed.
// A view owns nothing: the caller keeps the memory alive for as long as the call says.

#include <cstddef>
#include <type_traits>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"

namespace tandem {

// Where memory lies. A plain value.
struct Device {
  enum class Kind : uint8_t { kCpu = 0, kCuda };
  Kind kind = Kind::kCpu;
  int index = 0;  // of the GPU; 0 for the CPU

  static Device Cpu() { return {}; }
  static Device Cuda(int index) { return {Kind::kCuda, index}; }
  friend bool operator==(const Device& a, const Device& b) { return a.kind == b.kind && a.index == b.index; }
};

// `count` elements of type `dtype`, contiguous, at `data` (nullptr is allowed when count == 0). Shapes are
// the caller's business: transport and reduction see one dimension. A plain value.
struct ConstTensorView {
  const void* data = nullptr;
  size_t count = 0;
  DType dtype = DType::kF32;
  Device device;

  ConstTensorView() = default;
  ConstTensorView(const void* data, size_t count, DType dtype, Device device = Device::Cpu())
      : data(data), count(count), dtype(dtype), device(device) {}
  // From spans, vectors and arrays of element types.
  template <ElementType T>
  ConstTensorView(absl::Span<T> values)  // NOLINT: implicit, like absl::Span itself
      : data(values.data()), count(values.size()), dtype(DTypeOf<std::remove_const_t<T>>::value) {}
  template <typename C, ElementType T = typename C::value_type>
  requires(std::is_convertible_v<const C&, absl::Span<const T>> &&
           !std::is_convertible_v<const C*, const absl::Span<T>*> &&
           !std::is_convertible_v<const C*, const absl::Span<const T>*>)
      ConstTensorView(const C& values)  // NOLINT
      : ConstTensorView(absl::Span<const T>(values)) {}

  size_t bytes() const { return count * SizeOf(dtype); }
};

// The same, writable; converts to a ConstTensorView.
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
  // From a writable vector or array.
  template <typename C, ElementType T = typename C::value_type>
  requires(std::is_constructible_v<absl::Span<T>, C&> && !std::is_same_v<C, absl::Span<T>>)
      TensorView(C& values)  // NOLINT
      : TensorView(absl::Span<T>(values)) {}

  operator ConstTensorView() const { return {data, count, dtype, device}; }  // NOLINT
  size_t bytes() const { return count * SizeOf(dtype); }
  // Elements [offset, offset + length), which must lie within.
  TensorView Sub(size_t offset, size_t length) const {
    return {static_cast<char*>(data) + offset * SizeOf(dtype), length, dtype, device};
  }
};

}  // namespace tandem

#endif  // TANDEM_BASE_NUMERIC_TENSOR_H_
