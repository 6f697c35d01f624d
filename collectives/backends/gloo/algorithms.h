#ifndef TANDEM_COLLECTIVES_BACKENDS_GLOO_ALGORITHMS_H_
#define TANDEM_COLLECTIVES_BACKENDS_GLOO_ALGORITHMS_H_

// Which data the ranks exchange in each collective, and what they do with them.
//
// All-reduce: small vectors go to every rank, and each reduces them itself: one
// message's time. Larger ones are cut into one slice a rank: rank r collects and reduces the r-th and sends
// it to all, chunk by chunk, so that transfer and reduction overlap: the traffic of a ring or of
// halving-doubling (2 (P-1)/P of the vector), in two messages' times whatever P is. Reduce is the same with
// one receiver. A large broadcast goes out in slices that the others hand on to each other, so that the root
// sends every byte once. Everything else goes straight from its rank to its rank. All reductions are in rank
// order: the bits depend neither on size nor on timing. With P ranks each sends P - 1 messages a round: made
// for the few tens of hosts of a data-parallel job.

#include <cstddef>
#include <memory>

#include "collectives/backends/gloo/exchange.h"
#include "collectives/operation.h"

namespace tandem::collectives::gloo_tcp {

// Memory that is kept from one operation to the next. For one thread.
class Scratch {
 public:
  // At least `bytes`, aligned to 64, with any content.
  char* Get(size_t bytes);

 private:
  struct Free {
    void operator()(char* memory) const;
  };
  std::unique_ptr<char, Free> memory_;
  size_t bytes_ = 0;
};

// Runs a collective of a group of several ranks on `exchange`. False: it failed, exchange->failure() says
// how.
bool RunCollective(const Operation& operation, int rank, int world_size, absl::Time deadline,
                   Exchange* exchange, Scratch* scratch);

// Runs a collective of a group of one.
void RunAlone(const Operation& operation);

}  // namespace tandem::collectives::gloo_tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_GLOO_ALGORITHMS_H_
