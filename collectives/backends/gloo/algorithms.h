// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_ALGORITHMS_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_ALGORITHMS_H_

// Runs operations with Gloo's algorithms.
//
//    operation                        algorithm
//    all_reduce                       ring; up to 64 KiB halving-doubling (Gloo's "bcube")
//    reduce                           ring
//    broadcast                        binomial tree
//    all_gather                       ring (allgather; uneven parts: allgatherv)
//    gather, scatter, even parts      directly from and to the root
//    gather, scatter, uneven parts    alltoallv
//    all_to_all                       alltoall; uneven parts: alltoallv
//    barrier                          dissemination
//
// Gloo has no reduce_scatter for unbound buffers.

#include <memory>

#include "collectives/backends/tcp/algorithms.h"
#include "collectives/operation.h"

namespace gloo {
class Context;
}  // namespace gloo

namespace tandem::collectives::gloo_library {

// Returns true if Gloo has an algorithm for the kind.
bool HasAlgorithm(OpKind kind);

// Memory for values that Gloo cannot take or give in place. For one thread.
struct Memory {
  tcp::Scratch in, out;
};

// Runs a collective of several ranks and blocks until this rank is done. All ranks must have agreed on it,
// and on the counts of each pair (OperationComparer): otherwise Gloo fails. Throws Gloo's exceptions; then,
// too, Gloo no longer touches the operation's buffers.
//
// Sums, averages and products of f16 and bf16 are computed in f32, which doubles what is sent, and rounded
// once. Gloo adds around the ring, so the bits of sums depend on the size and the number of ranks, not on
// timing.
void RunAlgorithm(const Operation& operation, const std::shared_ptr<::gloo::Context>& context,
                  Memory* memory);

}  // namespace tandem::collectives::gloo_library

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_ALGORITHMS_H_
