// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/reduction.h"

#include <mpi.h>

#include "base/status.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives::mpi {
namespace {

// inout = in op inout, where `in` comes from the lower ranks.
template <ReduceOp kOp, DType kDType>
void Combine(void* in, void* inout, int* length, MPI_Datatype*) {
  ReduceInRankOrder(kOp, kDType, {in, inout}, {}, 1, *length, inout);
}

template <ReduceOp kOp, DType kDType>
MPI_Op Made() {
  // This operation does not commute for floating point: then one rank reduces for all, and all have the same
  // bits.
  static const MPI_Op made = [] {
    MPI_Op op = MPI_OP_NULL;
    TANDEM_CHECK(MPI_Op_create(&Combine<kOp, kDType>, !IsFloatingPoint(kDType), &op) == MPI_SUCCESS);
    return op;
  }();
  return made;
}

MPI_Datatype TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return MPI_UINT8_T;
    case DType::kI8:
      return MPI_INT8_T;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kF16:
    case DType::kBF16:
      break;  // sent as f32
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op OpOf(ReduceOp reduce, DType dtype) {
  switch (reduce) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
    case ReduceOp::kPremulSum:
      // Open MPI 4.1 saturates sums of bytes on processors with AVX; Tandem's sums wrap.
      if (dtype == DType::kU8) return Made<ReduceOp::kSum, DType::kU8>();
      if (dtype == DType::kI8) return Made<ReduceOp::kSum, DType::kI8>();
      return MPI_SUM;
    case ReduceOp::kProduct:
      if (dtype == DType::kU8) return Made<ReduceOp::kProduct, DType::kU8>();
      if (dtype == DType::kI8) return Made<ReduceOp::kProduct, DType::kI8>();
      return MPI_PROD;
    case ReduceOp::kMin:
      if (dtype == DType::kF32) return Made<ReduceOp::kMin, DType::kF32>();
      if (dtype == DType::kF64) return Made<ReduceOp::kMin, DType::kF64>();
      return MPI_MIN;
    case ReduceOp::kMax:
      if (dtype == DType::kF32) return Made<ReduceOp::kMax, DType::kF32>();
      if (dtype == DType::kF64) return Made<ReduceOp::kMax, DType::kF64>();
      return MPI_MAX;
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
  }
  return MPI_OP_NULL;
}

}  // namespace

MpiReduction ReductionOf(ReduceOp reduce, DType travel) {
  return {MPI_Type_c2f(TypeOf(travel)), MPI_Op_c2f(OpOf(reduce, travel))};
}

}  // namespace tandem::collectives::mpi
