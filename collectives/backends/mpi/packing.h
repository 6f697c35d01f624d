#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_PACKING_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_PACKING_H_

// Between the caller's elements and those that MPI is given. Pure functions.

#include <cstddef>

#include "collectives/operation.h"

namespace tandem::collectives::mpi {

// What elements travel as: f32 for halves that are reduced.
DType TravelType(const Operation& operation);

// n elements of `operation` at `from` to n of its TravelType at `to`, multiplied by this rank's factor for
// kPremulSum.
void Pack(const Operation& operation, const void* from, size_t n, void* to);
// And back, divided by `world_size` for kAvg. `from` may be changed.
void Unpack(const Operation& operation, void* from, size_t n, int world_size, void* to);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_PACKING_H_
