// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_GROUP_GROUP_H_
#define TANDEM_COLLECTIVES_GROUP_GROUP_H_

// Group is the implementation of ProcessGroup. It validates calls, hands them to the lane of their device,
// and owns what lives as long as the group. A Backend moves the bytes.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/connect/connect.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/diagnostics/monitored_barrier.h"
#include "collectives/diagnostics/watchdog.h"
#include "collectives/group/call.h"
#include "collectives/group/health.h"
#include "collectives/group/lane.h"
#include "collectives/process_group.h"

namespace tandem::collectives {

// Thread-safe, as ProcessGroup says.
class Group final : public ProcessGroup {
 public:
  // The components of a group. `store` is shared with subgroups; nullptr in a world of one that has none.
  struct Parts {
    ProcessGroupOptions options;  // complete: no field is left to the environment
    std::vector<int> global_ranks;
    std::shared_ptr<cluster::Store> store;
    std::shared_ptr<FlightRecorder> recorder;
    std::shared_ptr<Watchdog> watchdog;  // watches `recorder`; nullptr: no watchdog
    std::string error_file;              // of the launcher (peer_failure.h); "": none
    // Backends that were split from the parent group's; looked up before all others.
    std::vector<BackendFactory> split;
  };
  // Finds the other ranks and connects to them: InitProcessGroup with all options decided.
  static absl::StatusOr<std::unique_ptr<ProcessGroup>> Make(Parts parts);
  ~Group() override { Destroy(); }

  int rank() const override { return parts_.options.rank; }
  int world_size() const override { return parts_.options.world_size; }
  const std::string& name() const override { return parts_.options.name; }
  std::string backend(Device device) const override;
  bool is_initialized() const override { return !health_.broken(); }
  absl::Span<const int> global_ranks() const override { return parts_.global_ranks; }
  absl::StatusOr<int> GlobalRank(int group_rank) const override;
  absl::StatusOr<int> GroupRank(int global_rank) const override;

  Work AllReduce(TensorView tensor, const AllReduceOptions& options) override {
    return AllReduce(ConstTensorView(tensor), tensor, options);
  }
  Work AllReduce(ConstTensorView in, TensorView out, const AllReduceOptions& options) override;
  Work Reduce(TensorView tensor, const ReduceOptions& options) override;
  Work Broadcast(TensorView tensor, const RootOptions& options) override;
  Work AllGather(ConstTensorView in, TensorView out, const CallOptions& options) override;
  Work AllGather(ConstTensorView in, absl::Span<const TensorView> outs, const CallOptions& options) override;
  Work Gather(ConstTensorView in, absl::Span<const TensorView> outs, const RootOptions& options) override;
  Work Scatter(absl::Span<const ConstTensorView> ins, TensorView out, const RootOptions& options) override;
  Work ReduceScatter(ConstTensorView in, TensorView out, const ReduceScatterOptions& options) override;
  Work ReduceScatter(absl::Span<const ConstTensorView> ins, TensorView out,
                     const ReduceScatterOptions& options) override;
  Work AllToAll(ConstTensorView in, TensorView out, const CallOptions& options) override;
  Work AllToAll(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                const CallOptions& options) override;
  Work Barrier(const CallOptions& options) override;
  absl::Status MonitoredBarrier(absl::Duration timeout) override;

  Work AllReduceCoalesced(absl::Span<const TensorView> tensors, const AllReduceOptions& options) override;
  Work BroadcastCoalesced(absl::Span<const TensorView> tensors, const RootOptions& options) override;
  Work AllGatherCoalesced(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                          const CallOptions& options) override;
  Work ReduceScatterCoalesced(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                              const ReduceScatterOptions& options) override;

  Work Send(ConstTensorView tensor, int peer, const PointToPointOptions& options) override;
  Work Recv(TensorView tensor, int peer, const PointToPointOptions& options) override;
  Work Isend(ConstTensorView tensor, int peer, const PointToPointOptions& options) override;
  Work Irecv(TensorView tensor, int peer, const PointToPointOptions& options) override;
  std::vector<Work> BatchIsendIrecv(absl::Span<const PointToPoint> operations) override;

  absl::StatusOr<std::string> BroadcastBytes(absl::string_view bytes, const RootOptions& options) override;
  absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view bytes,
                                                          const CallOptions& options) override;
  absl::StatusOr<std::vector<std::string>> GatherBytes(absl::string_view bytes,
                                                       const RootOptions& options) override;
  absl::StatusOr<std::string> ScatterBytes(absl::Span<const std::string> all,
                                           const RootOptions& options) override;

  absl::StatusOr<std::unique_ptr<ProcessGroup>> NewGroup(absl::Span<const int> ranks,
                                                         absl::string_view backend) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> NewSubgroups(int size) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) override;

  absl::Status RegisterBuffer(TensorView buffer) override;
  absl::Status DeregisterBuffer(TensorView buffer) override;

  void Destroy() override;
  void Abort(absl::string_view reason) override;
  absl::Status error() const override { return health_.error(); }

 private:
  explicit Group(Parts parts) : parts_(std::move(parts)) {}

  // Prefixes an error with operation and group: "all_reduce on group 'default': ..."; OK stays OK.
  absl::Status Refuse(OpKind kind, const absl::Status& status) const;
  Lane* LaneOf(const Device& device) const;
  // Fills in the fields of `operation` that all calls share, and checks that its backend supports it. Returns
  // nullptr and sets *error if it does not.
  Lane* Prepare(Operation* operation, absl::Duration timeout, absl::Status* error) const;
  Work Submit(Call* call, bool async, absl::Duration timeout, void* stream);
  // Runs a coalesced operation: prepares all its calls before the first of them begins.
  Work SubmitTask(std::unique_ptr<Task> task, bool async, absl::Duration timeout, void* stream);
  Work PointToPointCall(OpKind kind, TensorView tensor, int peer, const PointToPointOptions& options,
                        bool blocking);
  absl::Status CheckPointToPoint(OpKind kind, const TensorView& tensor, int peer) const;
  // Makes the group of `ranks` of this group; returns nullptr if `color` is negative.
  // All ranks of this group call it: those that share a `color` with the same `ranks`, the others with a
  // negative color and none.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> MakeSubgroup(absl::Span<const int> ranks, int color,
                                                             std::string name, absl::string_view backend);
  std::string NextSubgroupName();
  // Handles an operation that has broken the group.
  void OnBroken();
  // Breaks the group unless it is broken already, and ends all operations, at once on this rank.
  void AbortWith(const absl::Status& error);
  // Dumps the flight recorder, if the environment asks for dumps.
  void Dump(const absl::Status& reason) const;

  const Parts parts_;
  Health health_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // one or two; constant once made
  std::atomic<uint64_t> subgroups_{0};
  std::unique_ptr<cluster::Store> barrier_store_;                             // a view of parts_.store
  std::unique_ptr<tandem::collectives::MonitoredBarrier> monitored_barrier_;  // nullptr in a world of one
  absl::Mutex destroy_mutex_;
  bool destroyed_ ABSL_GUARDED_BY(destroy_mutex_) = false;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_GROUP_H_
