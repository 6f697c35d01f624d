// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_ALGORITHMS_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_ALGORITHMS_H_

// Algorithms of the collectives: which data the ranks exchange and how they combine them. With P ranks, each
// rank sends P - 1 messages a round: this suits the few tens of hosts of a data-parallel job. All reductions
// are in rank order, so the bits depend neither on size nor on timing.
//
//   - Small all-reduce: each rank sends its vector to every rank and reduces all of them itself, in the time
//     of one message.
//   - Large all-reduce: the vector is cut into one slice per rank. Rank r collects and reduces the r-th slice
//     and sends it to all, chunk by chunk, so that transfer and reduction overlap. The traffic is that of a
//     ring or of halving-doubling (2 (P-1)/P of the vector), in the time of two messages for any P.
//   - Reduce: as all-reduce, with one receiver.
//   - Large broadcast: the root sends slices, which the other ranks forward to each other, so that the root
//     sends every byte once.
//   - Others: data goes directly from its rank to its rank.

#include <cstddef>
#include <memory>

#include "collectives/backends/tcp/exchange.h"
#include "collectives/operation.h"

namespace tandem::collectives::tcp {

// Memory that is reused by later operations. For one thread.
class Scratch {
 public:
  // Returns at least `bytes` bytes, aligned to 64, with undefined content.
  char* Get(size_t bytes);

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  size_t bytes_ = 0;
};

// Runs a collective of a group of several ranks on `exchange`. Returns false if it failed;
// exchange->failure() tells how.
bool RunCollective(const Operation& operation, int rank, int world_size, absl::Time deadline,
                   Exchange* exchange, Scratch* scratch);

// Runs a collective of a group of one.
void RunAlone(const Operation& operation);

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_ALGORITHMS_H_
