#ifndef TANDEM_COLLECTIVES_PROCESS_GROUP_H_
#define TANDEM_COLLECTIVES_PROCESS_GROUP_H_

// Collectives among the workers of a job, in torch.distributed's vocabulary. All ranks of a group call the
// same operations in the same order with the same sizes.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

enum class ReduceOp { kSum, kAvg, kMin, kMax };

struct ProcessGroupOptions {
  std::string backend = "gloo";
  std::string name = "default";  // groups of one store need distinct names
  int rank = 0;
  int world_size = 1;
  absl::Duration timeout = absl::Seconds(60);  // rendezvous, and every operation unless it is given its own
  // Name or address of the network interface to use; empty: the one that reaches the store.
  std::string interface_address;
};

// A group is used from one thread at a time (make a second group for a second thread). After an operation has
// failed the group is broken: every later call returns the first error again.
//
// Every operation blocks until it is done on this rank, bounded by `timeout` (default: the group's). Errors:
// DeadlineExceeded and Unavailable, both naming the operation, its sequence number and the ranks that are
// missing or gone; InvalidArgument, naming both sides, for operations, sizes, types, roots or reductions that
// differ between ranks.
//
// The destructor leaves the group together with the other ranks, or after 2 seconds; a rank that goes on
// alone then gets Unavailable.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // values[i] = op over ranks of values[i], in place, the same bits on every rank.
  virtual absl::Status AllReduce(absl::Span<float> values, ReduceOp op) = 0;
  virtual absl::Status AllReduce(absl::Span<double> values, ReduceOp op) = 0;
  virtual absl::Status AllReduce(absl::Span<int64_t> values, ReduceOp op) = 0;
  // Every rank gets the root's bytes (the same size everywhere).
  virtual absl::Status Broadcast(void* data, size_t bytes, int root) = 0;
  // out[r * bytes, (r+1) * bytes) = rank r's `in`; `bytes` is the same on every rank.
  virtual absl::Status AllGather(const void* in, size_t bytes, void* out) = 0;
  // Every rank's byte string, of any size, by rank.
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view bytes) = 0;
  // Returns when all ranks have called it.
  virtual absl::Status Barrier() = 0;
  virtual absl::Status Barrier(absl::Duration timeout) = 0;
};

// Meets the other ranks through `store` and connects. Blocks until all are there, bounded by options.timeout;
// DeadlineExceeded names the absent ranks. A world of one needs no network. `store` must outlive the group.
absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(Store* store,
                                                               const ProcessGroupOptions& options);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROCESS_GROUP_H_
