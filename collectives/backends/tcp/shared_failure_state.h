// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKENDS_TCP_SHARED_FAILURE_STATE_H_
#define TANDEM_COLLECTIVES_BACKENDS_TCP_SHARED_FAILURE_STATE_H_

// The reasons why ranks of a group failed, in the store. A rank that fails closes its connections, so its
// peers see only that it is gone. Here they find the reason, and can distinguish a rank that failed from one
// that died.

#include <atomic>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "cluster/store/prefix_store.h"

namespace tandem::collectives::tcp {

// `store` is borrowed. Any thread may call at any time: a thread that looks for the others' reasons does not
// block another that records this rank's. Keys: "failed/<rank>".
class SharedFailureState {
 public:
  SharedFailureState(cluster::Store* store, int rank) : store_(store, "failed"), rank_(rank) {}

  // Records this rank's reason, if the store can be reached.
  void Record(const absl::Status& reason);
  struct Found {
    int rank;
    absl::Status reason;
  };
  // Returns the reason of one of `ranks`; waits at most `grace` for the first one.
  absl::optional<Found> Find(absl::Span<const int> ranks, absl::Duration grace);

 private:
  cluster::PrefixStore store_;
  const int rank_;
  // False once the store did not respond. It may have died with the missed rank, so no thread waits for it
  // twice.
  std::atomic<bool> reachable_{true};
};

}  // namespace tandem::collectives::tcp

#endif  // TANDEM_COLLECTIVES_BACKENDS_TCP_SHARED_FAILURE_STATE_H_
