// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_SHM_SHM_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_SHM_SHM_BACKEND_H_

// The backend "shm": collectives between the ranks of one host, through shared memory.
//
// A group of P ranks (at most 64) costs each process one mapping, one thread that watches for deaths and at
// most P + 1 descriptors; see segment.h for the memory. No resource has a name in a file system, so nothing
// remains when the processes end for any reason. /dev/shm and its size limit are not used.
//
// Every collective synchronises all ranks, even those like broadcast in which some ranks could continue
// alone. So a rank that calls another operation, or does not call, is detected on all ranks at once. Results
// are evaluated in rank order and are the same bits on every rank, whatever the size.

#include "collectives/backend.h"

namespace tandem::collectives {

// Returns the factory of "shm", for CPU tensors of ranks with equal RankEndpoint::host. Errors of `make`:
// FailedPrecondition naming why the ranks cannot share memory (containers with network namespaces of their
// own, a kernel without memfd); DeadlineExceeded naming the ranks that did not come.
BackendFactory ShmBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_SHM_SHM_BACKEND_H_
