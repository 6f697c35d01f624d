#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SHM_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SHM_BACKEND_H_

// Collectives between the ranks of one host, through memory that they share.
//
// A group of P ranks (at most 64) costs each process one mapping, one thread that watches for deaths and at
// most P + 1 descriptors; see segment.h for the memory. Nothing has a name in a file system: whatever ends
// the processes, nothing stays behind. /dev/shm and its size limit play no part.
//
// Every collective makes all ranks meet, also those like broadcast of which some ranks could go on alone:
// so that a rank that calls something else, or does not call, is found on all ranks at once. Results are
// evaluated in rank order and are the same bits on every rank, whatever the size.

#include "collectives/backend.h"

namespace tandem::collectives {

// "shm", for CPU tensors of ranks with equal Peer::host. `make` returns FailedPrecondition, naming why, where
// the ranks cannot share memory after all (containers with network namespaces of their own, a kernel without
// memfd), DeadlineExceeded naming the ranks that did not come.
BackendFactory ShmBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SHM_BACKEND_H_
