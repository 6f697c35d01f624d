// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_TENSORS_H_
#define TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_TENSORS_H_

// Random tensors that every rank can compute for every other, and a direct model of a reduction.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/numeric/dtype.h"
#include "base/numeric/tensor.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// A tensor that owns its memory. A plain value.
struct Tensor {
  DType dtype = DType::kU8;
  std::vector<char> bytes;

  Tensor(DType dtype, size_t count) : dtype(dtype), bytes(count * SizeOf(dtype), 0x5a) {}
  size_t count() const { return bytes.size() / SizeOf(dtype); }
  TensorView view() { return {bytes.data(), count(), dtype}; }
  ConstTensorView view() const { return {bytes.data(), count(), dtype}; }
  TensorView part(size_t offset, size_t length) { return view().Sub(offset, length); }
};

// Returns any bits, including NaNs, for operations that only move data. The same for the same key.
Tensor RandomBits(DType dtype, size_t count, uint64_t key);

// Returns values on which `op` is exact in `dtype` in any order, for up to 16 ranks (the average rounds
// once): integers of the whole range if they wrap; else small multiples of a half, or powers of two.
Tensor RandomValues(DType dtype, ReduceOp op, size_t count, uint64_t key);
// Returns a factor for kPremulSum: a power of two.
double RandomFactor(uint64_t key);

// Returns op over s of tensors[s], evaluated in order.
Tensor Reduced(ReduceOp op, absl::Span<const Tensor> tensors, absl::Span<const double> factors);

// Returns "" if the tensors are equal (averages of floating point: nearly), else where they first differ.
std::string Difference(const Tensor& actual, const Tensor& expected, bool average = false);

}  // namespace tandem::collectives

#endif  // TANDEM_TESTS_COLLECTIVES_CONFORMANCE_SUITE_TENSORS_H_
