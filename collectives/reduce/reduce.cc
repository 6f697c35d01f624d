// SPDX-License-Identifier: Apache-2.0
#include "collectives/reduce/reduce.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/reduce/kernels.h"

namespace tandem::collectives {
namespace {

using internal::Reduction;

bool IsBitwise(ReduceOp op) {
  return op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
}

void RunKernel(DType dtype, const Reduction& r) {
  switch (dtype) {
    case DType::kU8:
      return internal::ReduceU8(r);
    case DType::kI8:
      return internal::ReduceI8(r);
    case DType::kI32:
      return internal::ReduceI32(r);
    case DType::kI64:
      return internal::ReduceI64(r);
    case DType::kF16:
      return internal::ReduceF16(r);
    case DType::kBF16:
      return internal::ReduceBF16(r);
    case DType::kF32:
      return internal::ReduceF32(r);
    case DType::kF64:
      return internal::ReduceF64(r);
  }
}

// The type in which elements of type T are divided. Its truncated quotients are the integer quotients, and
// processors divide several floating-point numbers at a time.
template <typename T>
using Dividend =
    std::conditional_t<sizeof(T) == 1, float, std::conditional_t<sizeof(T) == 4, double, int64_t>>;

// The elements may lie at any address.
template <typename T>
void DivideEach(void* values, size_t n, int average_over) {
  const auto divisor = static_cast<Dividend<T>>(average_over);
  for (size_t i = 0; i < n; ++i) {
    char* const at = static_cast<char*>(values) + i * sizeof(T);
    T value;
    std::memcpy(&value, at, sizeof(T));
    value = static_cast<T>(static_cast<Dividend<T>>(value) / divisor);
    std::memcpy(at, &value, sizeof(T));
  }
}

// Sums block by block, and divides each block while it is in the first-level cache.
void AverageIntegers(DType dtype, Reduction r) {
  constexpr size_t kBlockBytes = 4096;
  const size_t block = kBlockBytes / SizeOf(dtype);
  const size_t n = r.n;
  absl::InlinedVector<const void*, 16> sources(r.sources, r.sources + r.num_sources);
  r.op = ReduceOp::kSum;
  r.sources = sources.data();
  r.stream = false;
  for (size_t begin = 0; begin < n; begin += block) {
    r.n = std::min(block, n - begin);
    RunKernel(dtype, r);
    DispatchDType(dtype, [&](auto type) {
      using T = decltype(type);
      if constexpr (std::is_integral_v<T>) DivideEach<T>(r.out, r.n, r.average_over);
    });
    r.out = static_cast<char*>(r.out) + kBlockBytes;
    for (const void*& source : sources) source = static_cast<const char*>(source) + kBlockBytes;
  }
}

}  // namespace

absl::Status SupportsReduction(ReduceOp op, DType dtype) {
  if (SizeOf(dtype) == 0 || op > ReduceOp::kPremulSum) {
    return absl::UnimplementedError(absl::StrCat("there is no reduction ", Name(op), " of ", Name(dtype)));
  }
  if (IsBitwise(op) && IsFloatingPoint(dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("reduction ", Name(op), " is for integers, not for ", Name(dtype)));
  }
  if (op == ReduceOp::kPremulSum && !IsFloatingPoint(dtype)) {
    return absl::UnimplementedError(
        absl::StrCat("reduction ", Name(op), " is for floating point, not for ", Name(dtype)));
  }
  return absl::OkStatus();
}

void ReduceInRankOrder(ReduceOp op, DType dtype, absl::Span<const void* const> sources,
                       absl::Span<const double> factors, int average_over, size_t n, void* out,
                       WriteHint hint) {
  TANDEM_CHECK(!sources.empty());
  TANDEM_CHECK(op != ReduceOp::kPremulSum || factors.size() == sources.size());
  TANDEM_CHECK(op != ReduceOp::kAvg || average_over > 0);
  if (n == 0) return;
  // A source that was just read is in the caches, so writing it back there is fastest.
  const bool in_place = std::find(sources.begin(), sources.end(), out) != sources.end();
  Reduction r{.op = op,
              .sources = sources.data(),
              .num_sources = sources.size(),
              .factors = factors.data(),
              .average_over = average_over,
              .n = n,
              .out = out,
              .stream = hint == WriteHint::kStream && !in_place &&
                        reinterpret_cast<uintptr_t>(out) % SizeOf(dtype) == 0};
  if (IsBitwise(op)) {
    r.n = n * SizeOf(dtype);
    return internal::ReduceBits(r);
  }
  if (op == ReduceOp::kAvg && !IsFloatingPoint(dtype)) return AverageIntegers(dtype, r);
  RunKernel(dtype, r);
}

void WidenToF32(DType dtype, const void* in, size_t n, float* out) {
  TANDEM_CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  dtype == DType::kF16 ? internal::WidenF16(in, n, out) : internal::WidenBF16(in, n, out);
}

void NarrowFromF32(DType dtype, const float* in, size_t n, void* out) {
  TANDEM_CHECK(dtype == DType::kF16 || dtype == DType::kBF16);
  dtype == DType::kF16 ? internal::NarrowF16(in, n, out) : internal::NarrowBF16(in, n, out);
}

}  // namespace tandem::collectives
