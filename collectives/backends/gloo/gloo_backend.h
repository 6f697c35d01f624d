#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_

// The backend "gloo": groups across hosts, over TCP connections of Gloo's transport.
//
// Every rank is connected to every other; each listens on its BackendOptions.peers[rank].address. Ranks that
// call different things, or parts of different sizes, are told so on all sides, and a rank that gives up
// leaves its reason in the store for those who see its connections close.

#include "collectives/backend.h"

namespace tandem::collectives {

// Any number of ranks, of one too. Errors of `make`: InvalidArgument (no numeric address of this machine),
// DeadlineExceeded naming ranks that did not come, Unavailable naming the rank that could not be reached.
BackendFactory GlooBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_
