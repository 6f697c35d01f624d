// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_STEP_REPLICA_REDUCER_H_
#define TANDEM_WORKER_STEP_REPLICA_REDUCER_H_

// Sums the gradients of replicated rows over all workers. A small table is summed as a whole, concurrently
// with the backward pass. For a large one the workers first compare how many of its rows they have touched:
// if these take less space than the table, only they travel (all-gather), else the table (all-reduce). All
// workers make the same choice, and it does not change a bit if the backend adds in rank order.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "collectives/process_group.h"
#include "ps/replicated/replicated_tables.h"

namespace tandem::worker {

// Used by one thread; every rank must make the same calls in the same order.
class ReplicaReducer {
 public:
  // `group` and `replicas` outlive the reducer. If `group` is nullptr or has one rank, every call is a no-op.
  // Tables of at most `dense_bytes` are always summed as a whole.
  ReplicaReducer(collectives::ProcessGroup* group, ps::ReplicatedTables* replicas,
                 size_t dense_bytes = size_t{1} << 20);
  ~ReplicaReducer();

  // Starts to sum the gradients of this step, which the replicas must not change until Finish.
  void Begin();
  // Waits until every gradient is summed, each operation at most for the group's timeout. Returns the first
  // error.
  absl::Status Finish();

  // Bytes of gradients that this worker has sent.
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  absl::Status FinishLarge();
  absl::Status GatherTouched(ps::ReplicatedRows* rows, absl::Span<const uint64_t> counts);

  collectives::ProcessGroup* const group_;
  ps::ReplicatedTables* const replicas_;
  const size_t dense_bytes_;
  std::vector<TensorView> small_;
  std::vector<ps::ReplicatedRows*> large_;
  std::vector<collectives::Work> works_;
  std::vector<float> packed_;                 // of this worker
  std::vector<std::vector<float>> gathered_;  // of each rank
  uint64_t sent_bytes_ = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_STEP_REPLICA_REDUCER_H_
