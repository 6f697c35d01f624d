// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_MPI_PACKING_H_
#define TANDEM_COLLECTIVES_BACKENDS_MPI_PACKING_H_

// Converts between the caller's elements and the elements that MPI is given. Pure functions.

#include <cstddef>

#include "collectives/operation.h"

namespace tandem::collectives::mpi {

// Returns the type in which elements are sent: f32 for reductions of two-byte floating point.
DType TravelType(const Operation& operation);

// Converts n elements of `operation` at `from` to n elements of its TravelType at `to`, multiplied by this
// rank's factor for kPremulSum.
void Pack(const Operation& operation, const void* from, size_t n, void* to);
// Converts back, and divides by `world_size` for kAvg. `from` may be changed.
void Unpack(const Operation& operation, void* from, size_t n, int world_size, void* to);

}  // namespace tandem::collectives::mpi

#endif  // TANDEM_COLLECTIVES_BACKENDS_MPI_PACKING_H_
