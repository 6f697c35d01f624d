// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_NUMERIC_DTYPE_H_
#define TANDEM_BASE_NUMERIC_DTYPE_H_

// The types of tensor elements, as numbers and as C++ types.

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "base/numeric/float16.h"

namespace tandem {

// The type of a tensor's elements. The numbers are sent between processes: new ones may be added, existing
// ones must not change.
enum class DType : uint8_t { kU8 = 0, kI8, kI32, kI64, kF16, kBF16, kF32, kF64 };
inline constexpr int kNumDTypes = 8;

// Returns the size of one element in bytes, or 0 for a number that is not a DType (a peer may send any).
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

// Returns "f32", "bf16", ..., or "unknown dtype" for a number that is not a DType.
absl::string_view Name(DType dtype);

// Returns true for the floating-point types.
constexpr bool IsFloatingPoint(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32 || dtype == DType::kF64;
}

// The DType of a C++ element type. char and std::byte are bytes, like uint8_t.
template <typename T>
struct DTypeOf;  // undefined for other types
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

// A type that tensor elements can have.
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
