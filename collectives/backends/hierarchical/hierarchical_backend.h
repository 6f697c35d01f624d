// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_

// The backend "shm+tcp", for several hosts with several ranks each. It combines two backends: an inner one
// inside each host ("shm") and an outer one between hosts ("tcp").
//
// The lowest rank of each host is its leader. Data that is reduced or gathered is combined first inside each
// host, then between the leaders, and the result is distributed inside each host. So each byte crosses the
// network once per host, not once per rank. Gather, scatter, all-to-all and messages between two ranks move
// each byte only once in any case. They use direct connections between all ranks, of the outer kind: no
// leader is involved, and one place matches the messages, which a receive from any rank needs.
//
// Each operation begins with a comparison of fingerprints, first among the ranks of a host, then among the
// leaders. A failure on one level ends the others. The first reason is stored in the store, and all ranks
// return it; it names ranks and the operation as users of the group know them.
//
// Sums are grouped by host. They are the same bits on every rank, but not those of a flat backend. Sums,
// averages and products of f16 and bf16 are computed and sent in f32 on all levels and rounded once, at the
// end.

#include "collectives/backend.h"

namespace tandem::collectives {

// Returns the factory of "<inner>+<outer>". Hosts are distinguished by RankEndpoint::host, in any order and
// of any sizes. With one host, or one rank on each host, only the one backend that is needed is made. Errors
// of `make` are those of the two factories.
BackendFactory HierarchicalBackendFactory(const BackendFactory& inner, const BackendFactory& outer);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKENDS_HIERARCHICAL_HIERARCHICAL_BACKEND_H_
