// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_TCP_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_TCP_BACKEND_H_

// The backend "tcp": groups across hosts, over TCP connections.
//
// Every rank is connected to every other; each listens on its BackendOptions.peers[rank].address. If ranks
// call different operations, or parts of different sizes, all sides get an error. A rank that fails stores
// its reason in the store, for the ranks that see its connections close.

#include "collectives/backend.h"

namespace tandem::collectives {

// Returns the factory of "tcp", for any number of ranks, including one. Errors of `make`: InvalidArgument
// (no numeric address of this machine), DeadlineExceeded naming ranks that did not come, Unavailable naming
// the rank that could not be reached.
BackendFactory TcpBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_TCP_BACKEND_H_
