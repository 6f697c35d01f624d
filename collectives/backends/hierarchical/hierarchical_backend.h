#ifndef TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_

// A backend for several hosts with several ranks each, made of two others: an inner one inside each host
// ("shm") and an outer one between hosts ("gloo"). "shm+gloo".
//
// The lowest rank of each host leads it. What is reduced or gathered is so first inside each host, then
// between the leaders, and the result is handed on inside each host: each byte crosses the network once a
// host, not once a rank. Gather, scatter, all-to-all and messages between two ranks move each byte once
// anyway, so they take straight connections between all ranks (of the outer kind): one place that matches
// messages, which a receive from any rank needs, and no leader in between.
//
// Before anything else the ranks of a host compare what they are called for, then the leaders do. Whatever
// fails on one level ends the others; the first reason is left in the store, and all ranks return that one,
// which names ranks and the operation as users of the group know them. Sums are grouped by host: the same
// bits on every rank, but not those of a flat backend; f16 and bf16 are rounded once on each level.

#include "collectives/backend.h"

namespace tandem::collectives {

// Hosts are told apart by Peer::host, in any order and of any sizes. With one host, or one rank on each, the
// one backend that is needed is made alone. Errors of `make`: as the two factories'.
BackendFactory HierarchicalBackendFactory(const BackendFactory& inner, const BackendFactory& outer);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_
