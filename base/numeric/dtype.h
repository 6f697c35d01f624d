#ifndef TANDEM_BASE_NUMERIC_DTYPE_H_
#define TANDEM_BASE_NUMERIC_DTYPE_H_

// The types of tensor elements, by number and by C++ type.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "base/numeric/float16.h"

namespace tandem {

// The numbers travel between processes: add, never renumber.
enum class DType : uint8_t { kU8 = 0, kI8, kI32, kI64, kF16, kBF16, kF32, kF64 };
inline constexpr int kNumDTypes = 8;

// Bytes of one element; 0 for a number that is no DType (a peer may send any).
constexpr size_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
    case DType::kI8:
      return 1;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kI32:
    case DType::kF32:
      return 4;
    case DType::kI64:
    case DType::kF64:
      return 8;
  }
  return 0;
}

// "f32", "bf16", ...; "unknown dtype" for a number that is none.
absl::string_view Name(DType dtype);

constexpr bool IsFloatingPoint(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

// The DType of a C++ element type. char and std::byte are bytes like uint8_t.
template <typename T>
struct DTypeOf;  // no such element type
template <DType kValue>
struct DTypeConstant {
  static constexpr DType value = kValue;
};
template <>
struct DTypeOf<uint8_t> : DTypeConstant<DType::kU8> {};
template <>
struct DTypeOf<char> : DTypeConstant<DType::kU8> {};
template <>
struct DTypeOf<std::byte> : DTypeConstant<DType::kU8> {};
template <>
struct DTypeOf<int8_t> : DTypeConstant<DType::kI8> {};
template <>
struct DTypeOf<int32_t> : DTypeConstant<DType::kI32> {};
template <>
struct DTypeOf<int64_t> : DTypeConstant<DType::kI64> {};
template <>
struct DTypeOf<Float16> : DTypeConstant<DType::kF16> {};
template <>
struct DTypeOf<BFloat16> : DTypeConstant<DType::kBF16> {};
template <>
struct DTypeOf<float> : DTypeConstant<DType::kF32> {};
template <>
struct DTypeOf<double> : DTypeConstant<DType::kF64> {};

// A type that tensors can have elements of.
template <typename T>
concept ElementType = requires {
  DTypeOf<std::remove_const_t<T>>::value;
};

// Calls body(T()) with the C++ type of `dtype` and returns what it returns. `dtype` must be valid.
template <typename Body>
decltype(auto) DispatchDType(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kU8:
      return body(uint8_t());
    case DType::kI8:
      return body(int8_t());
    case DType::kI32:
      return body(int32_t());
    case DType::kI64:
      return body(int64_t());
    case DType::kF16:
      return body(Float16());
    case DType::kBF16:
      return body(BFloat16());
    case DType::kF32:
      return body(float());
    case DType::kF64:
      break;
  }
  return body(double());
}

}  // namespace tandem

#endif  // TANDEM_BASE_NUMERIC_DTYPE_H_
