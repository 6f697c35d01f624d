// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_REDUCTION_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_REDUCTION_H_

// MPI's names for Tandem's reductions.

#include <cstdint>

#include "collectives/operation.h"

namespace tandem::collectives::mpi {

// Handles as MPI_Type_c2f and MPI_Op_c2f return them.
struct MpiReduction {
  int type = 0;
  int op = 0;
};
// Returns the handles for a type that is sent (packing.h) and a supported reduction. Must be called on the
// engine's thread.
MpiReduction ReductionOf(ReduceOp reduce, DType travel);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_REDUCTION_H_
