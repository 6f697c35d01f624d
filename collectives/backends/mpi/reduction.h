#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_REDUCTION_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_REDUCTION_H_

// MPI's names of our reductions.

#include <cstdint>

#include "collectives/operation.h"

namespace tandem::collectives::mpi {

// As MPI_Type_c2f and MPI_Op_c2f give them.
struct MpiReduction {
  int type = 0;
  int op = 0;
};
// For a type that travels (packing.h) and a supported reduction. On the engine's thread.
MpiReduction ReductionOf(ReduceOp reduce, DType travel);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_REDUCTION_H_
