// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_

// The backend "gloo": the algorithms and the TCP transport of the library Gloo, for groups on any hosts.
//
// Gloo itself neither compares what the ranks call nor tells which rank has died. So each group has a second
// mesh of connections, those of the backend "tcp". Over it the ranks compare each collective before Gloo
// begins, learn that a rank died or aborted, and exchange messages (send, recv), whose sizes Gloo does not
// check. This costs one exchange of 32 bytes for each collective.
//
// Operations that Gloo lacks (reduce_scatter) are Unimplemented.

#include "collectives/backend.h"

namespace tandem::collectives {

// Returns the factory of "gloo", for any number of ranks, including one. Errors of `make`: those of "tcp";
// Unavailable with Gloo's reason.
BackendFactory GlooBackendFactory();

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_GLOO_BACKEND_H_
