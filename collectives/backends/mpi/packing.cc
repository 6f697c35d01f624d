// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/packing.h"

#include <cstring>

#include "base/numeric/float16.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"

namespace tandem::collectives::mpi {
namespace {

bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

template <typename Half>
void Widen(const void* from, size_t n, float* to) {
  for (size_t i = 0; i < n; ++i) {
    Half half;
    std::memcpy(&half, static_cast<const char*>(from) + i * sizeof(half), sizeof(half));
    to[i] = static_cast<float>(half);
  }
}

template <typename Half>
void Narrow(const float* from, size_t n, void* to) {
  for (size_t i = 0; i < n; ++i) {
    const Half half(from[i]);
    std::memcpy(static_cast<char*>(to) + i * sizeof(half), &half, sizeof(half));
  }
}

}  // namespace

DType TravelType(const Operation& o) { return Reduces(o.kind) && IsHalf(o.dtype) ? DType::kF32 : o.dtype; }

void Pack(const Operation& o, const void* from, size_t n, void* to) {
  if (n == 0) return;
  const DType travel = TravelType(o);
  if (travel != o.dtype) {
    o.dtype == DType::kF16 ? Widen<Float16>(from, n, static_cast<float*>(to))
                           : Widen<BFloat16>(from, n, static_cast<float*>(to));
    from = to;
  }
  if (Reduces(o.kind) && o.reduce == ReduceOp::kPremulSum) {
    ReduceInRankOrder(ReduceOp::kPremulSum, travel, {from}, {o.factor}, 1, n, to);
  } else if (from != to) {
    std::memcpy(to, from, n * SizeOf(travel));
  }
}

void Unpack(const Operation& o, void* from, size_t n, int world_size, void* to) {
  if (n == 0) return;
  const DType travel = TravelType(o);
  const bool average = Reduces(o.kind) && o.reduce == ReduceOp::kAvg;
  if (travel != o.dtype) {
    if (average) ReduceInRankOrder(ReduceOp::kAvg, travel, {from}, {}, world_size, n, from);
    o.dtype == DType::kF16 ? Narrow<Float16>(static_cast<const float*>(from), n, to)
                           : Narrow<BFloat16>(static_cast<const float*>(from), n, to);
  } else if (average) {
    ReduceInRankOrder(ReduceOp::kAvg, travel, {from}, {}, world_size, n, to);
  } else if (from != to) {
    std::memcpy(to, from, n * SizeOf(travel));
  }
}

}  // namespace tandem::collectives::mpi
