// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/conformance/suite/tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "base/random.h"

namespace tandem::collectives {
namespace {

template <typename T>
T FromDouble(double value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

template <typename T>
double ToDouble(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

template <typename T>
T At(const Tensor& tensor, size_t i) {
  T value;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
T Combine(ReduceOp op, absl::Span<const Tensor> tensors, absl::Span<const double> factors, size_t i) {
  if constexpr (std::is_integral_v<T>) {
    uint64_t sum = 0, product = 1;
    T low = At<T>(tensors[0], i), high = low, all = low, any = low, odd = 0;
    for (const Tensor& tensor : tensors) {
      const T value = At<T>(tensor, i);
      sum += static_cast<uint64_t>(value);
      product *= static_cast<uint64_t>(value);
      low = std::min(low, value);
      high = std::max(high, value);
      all = static_cast<T>(all & value);
      any = static_cast<T>(any | value);
      odd = static_cast<T>(odd ^ value);
    }
    switch (op) {
      case ReduceOp::kAvg:
        return static_cast<T>(static_cast<int64_t>(sum) / static_cast<int64_t>(tensors.size()));
      case ReduceOp::kProduct:
        return static_cast<T>(product);
      case ReduceOp::kMin:
        return low;
      case ReduceOp::kMax:
        return high;
      case ReduceOp::kBitAnd:
        return all;
      case ReduceOp::kBitOr:
        return any;
      case ReduceOp::kBitXor:
        return odd;
      default:
        return static_cast<T>(sum);
    }
  } else {
    double sum = 0, product = 1, low = ToDouble(At<T>(tensors[0], i)), high = low;
    for (size_t s = 0; s < tensors.size(); ++s) {
      const double value = ToDouble(At<T>(tensors[s], i));
      sum += value * (op == ReduceOp::kPremulSum ? factors[s] : 1.0);
      product *= value;
      low = std::min(low, value);
      high = std::max(high, value);
    }
    switch (op) {
      case ReduceOp::kAvg:
        return FromDouble<T>(sum / static_cast<double>(tensors.size()));
      case ReduceOp::kProduct:
        return FromDouble<T>(product);
      case ReduceOp::kMin:
        return FromDouble<T>(low);
      case ReduceOp::kMax:
        return FromDouble<T>(high);
      default:
        return FromDouble<T>(sum);
    }
  }
}

}  // namespace

Tensor RandomBits(DType dtype, size_t count, uint64_t key) {
  Tensor tensor(dtype, count);
  CounterRandom random(key, /*stream=*/1);
  for (size_t at = 0; at < tensor.bytes.size(); at += sizeof(uint64_t)) {
    const uint64_t bits = random();
    std::memcpy(tensor.bytes.data() + at, &bits, std::min(sizeof(bits), tensor.bytes.size() - at));
  }
  return tensor;
}

Tensor RandomValues(DType dtype, ReduceOp op, size_t count, uint64_t key) {
  const bool whole_range = !IsFloatingPoint(dtype) && op != ReduceOp::kAvg;
  if (whole_range) return RandomBits(dtype, count, key);
  Tensor tensor(dtype, count);
  CounterRandom random(key, /*stream=*/2);
  DispatchDType(dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < count; ++i) {
      double value;
      if (op == ReduceOp::kProduct) {
        value = std::ldexp(random.Below(2) == 0 ? 1.0 : -1.0, static_cast<int>(random.Below(3)) - 1);
      } else if (std::is_same_v<T, uint8_t>) {
        value = static_cast<double>(random.Below(16));  // sixteen of them do not wrap
      } else if (std::is_integral_v<T>) {
        value = static_cast<double>(random.Below(15)) - 7;
      } else {
        // bf16 has eight bits: sixteen such values, doubled, still fit.
        value = (static_cast<double>(random.Below(9)) - 4) / 2;
      }
      const T element = FromDouble<T>(value);
      std::memcpy(tensor.bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return tensor;
}

double RandomFactor(uint64_t key) { return CounterRandom(key, /*stream=*/3).Below(2) == 0 ? 1.0 : 2.0; }

Tensor Reduced(ReduceOp op, absl::Span<const Tensor> tensors, absl::Span<const double> factors) {
  Tensor result(tensors[0].dtype, tensors[0].count());
  DispatchDType(result.dtype, [&](auto type) {
    using T = decltype(type);
    for (size_t i = 0; i < result.count(); ++i) {
      const T element = Combine<T>(op, tensors, factors, i);
      std::memcpy(result.bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
  return result;
}

std::string Difference(const Tensor& actual, const Tensor& expected, bool average) {
  if (actual.bytes == expected.bytes) return "";
  if (actual.count() != expected.count()) {
    return absl::StrCat(actual.count(), " elements instead of ", expected.count());
  }
  return DispatchDType(actual.dtype, [&](auto type) -> std::string {
    using T = decltype(type);
    for (size_t i = 0; i < actual.count(); ++i) {
      const double got = ToDouble(At<T>(actual, i)), wanted = ToDouble(At<T>(expected, i));
      // A division, or a multiplication by the inverse: one rounding more or less.
      const double unit = std::is_same_v<T, double> ? 1e-15 : std::is_same_v<T, float> ? 3e-7 : 1e-2;
      if (average && !std::is_integral_v<T> && std::abs(got - wanted) <= unit * std::abs(wanted)) continue;
      if (std::memcmp(actual.bytes.data() + i * sizeof(T), expected.bytes.data() + i * sizeof(T),
                      sizeof(T)) == 0) {
        continue;
      }
      return absl::StrCat("element ", i, " of ", actual.count(), " is ", got, " instead of ", wanted);
    }
    return "";
  });
}

}  // namespace tandem::collectives
