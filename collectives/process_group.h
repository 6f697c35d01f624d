#ifndef TANDEM_COLLECTIVES_PROCESS_GROUP_H_
#define TANDEM_COLLECTIVES_PROCESS_GROUP_H_

// Collectives among the ranks of a job, in torch.distributed's vocabulary. docs/collectives.md maps every
// call.
//
//   TANDEM_ASSIGN_OR_RETURN(auto group, InitProcessGroup({.init_method = "env://"}));
//   TANDEM_RETURN_IF_ERROR(group->AllReduce(absl::MakeSpan(gradients), {.op = ReduceOp::kAvg}).Wait());

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/numeric/tensor.h"
#include "collectives/backend.h"
#include "collectives/operation.h"
#include "collectives/store/store.h"
#include "collectives/work.h"

namespace tandem::collectives {

class FlightRecorder;

// How much ranks check each other; TANDEM_DEBUG=OFF, INFO or DETAIL where a program leaves kFromEnv.
// kDetail compares fingerprints before every operation on every backend (shm and gloo always do).
enum class DebugLevel { kFromEnv, kOff, kInfo, kDetail };

struct ProcessGroupOptions {
  // "auto", "shm", "gloo", "mpi", "nccl", "shm+gloo" (shared memory inside each host, Gloo between them), or
  // one per device: "cpu:auto,cuda:nccl". auto: shm where all ranks are on one host, gloo where each is alone
  // on its own, else shm+gloo; where that cannot be (containers that share no memory), all ranks take gloo.
  // Empty: TANDEM_BACKEND, or auto. A world of one copies in its own memory, whatever CPU backend is named.
  std::string backend;
  std::string name = "default";  // groups of one store need distinct names
  int rank = -1;                 // -1: what init_method tells
  int world_size = -1;
  // How ranks find each other, when InitProcessGroup is given no store: "env://" (RANK, WORLD_SIZE,
  // MASTER_ADDR, MASTER_PORT), "tcp://host:port" (rank 0 serves it), "file:///path" (on a shared file
  // system).
  std::string init_method = "env://";
  absl::Duration timeout = absl::Seconds(60);  // rendezvous, and every operation unless it is given its own
  // Name or address of the network interface to use; empty: TANDEM_INTERFACE, or the one that reaches the
  // store.
  std::string interface_address;
  // Which ranks share memory: those of equal host. Empty: TANDEM_HOST, or what tells machines, and containers
  // with networks of their own, apart (ipc::HostIdentity()).
  std::string host;
  DebugLevel debug = DebugLevel::kFromEnv;
  // Shared by the groups of a process; nullptr: one of its own, from the environment
  // (debug/flight_recorder.h).
  std::shared_ptr<FlightRecorder> recorder;
  // The rendezvous round (epoch) of the job that this process belongs to; 0: TANDEM_EPOCH under env://, else
  // none. Ranks of another epoch are not met, and one whose epoch is over is refused: FailedPrecondition,
  // "worker/3 belongs to epoch 4; the job is at epoch 5", also while it waits.
  int64_t epoch = 0;
  // Asked several times a second while ranks wait for each other: an error ends the wait with it. Must not
  // block.
  std::function<absl::Status()> should_continue;
  // Backends beside the built-in ones, looked up first: tests, plugins.
  std::vector<BackendFactory> extra_backends;
};

// Options of the calls. async: the call returns at once and the operation runs in the group's order on the
// group's thread; otherwise it has run, in this thread, when the call returns. timeout: zero means the
// group's.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;  // of kPremulSum
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
};
using ReduceScatterOptions = AllReduceOptions;
struct ReduceOptions {
  int root = 0;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
};
struct RootOptions {
  int root = 0;
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
};
struct CallOptions {
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
};
struct PointToPointOptions {
  uint32_t tag = 0;
  absl::Duration timeout = absl::ZeroDuration();
};
struct PointToPoint {  // one entry of BatchIsendIrecv; torch's P2POp
  enum class Kind { kSend, kRecv };
  Kind kind = Kind::kSend;
  int peer = 0;
  TensorView tensor;  // of a send: only read
  uint32_t tag = 0;
};

// A group of ranks, an ordinary object: make as many as are needed. All ranks of a group call the same
// collectives in the same order with the same dtypes and sizes; which thread calls does not matter (calls are
// serialised), but threads that race decide the order, and it must be the same on all ranks. Groups do not
// wait for each other.
//
// Buffers belong to the operation until its Work is completed. Shapes below: P is world_size(), r is rank().
//
// Errors, in the returned Work: InvalidArgument for what this rank can see to be wrong (a root out of range,
// counts that do not fit: nothing was sent, the group is as before) and for ranks that disagree, naming both
// sides; Unimplemented naming backend, operation and dtype (the group is as before); DeadlineExceeded naming
// the operation and the ranks that did not come; Unavailable naming the rank that died or left; Aborted after
// Abort or Destroy. After an error of the second kind the group is broken: later calls return the first error
// again.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;  // as Destroy

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual const std::string& name() const = 0;
  // The backend that serves `device`: "shm"; "" if none does.
  virtual std::string backend(Device device = Device::Cpu()) const = 0;
  // False after Destroy, Abort or an error that broke it.
  virtual bool is_initialized() const = 0;
  // The ranks of this group as ranks of the first group, and back; InvalidArgument if it has no such rank.
  virtual absl::Span<const int> global_ranks() const = 0;
  virtual absl::StatusOr<int> GlobalRank(int group_rank) const = 0;
  virtual absl::StatusOr<int> GroupRank(int global_rank) const = 0;

  // tensor[i] = op over ranks of tensor[i]; the same bits on every rank.
  virtual Work AllReduce(TensorView tensor, const AllReduceOptions& options = {}) = 0;
  // Out of place: out[i] = op over ranks of in[i]. in and out have the same count.
  virtual Work AllReduce(ConstTensorView in, TensorView out, const AllReduceOptions& options = {}) = 0;
  // At the root as AllReduce; elsewhere `tensor` is only read.
  virtual Work Reduce(TensorView tensor, const ReduceOptions& options = {}) = 0;
  // Every rank gets the root's elements.
  virtual Work Broadcast(TensorView tensor, const RootOptions& options = {}) = 0;
  // out[s * in.count, (s + 1) * in.count) = rank s's in; out.count == P * in.count on every rank.
  virtual Work AllGather(ConstTensorView in, TensorView out, const CallOptions& options = {}) = 0;
  // outs[s] = rank s's in, of any count, known to all: outs.size() == P, outs[r].count == in.count.
  virtual Work AllGather(ConstTensorView in, absl::Span<const TensorView> outs,
                         const CallOptions& options = {}) = 0;
  // At the root outs[s] = rank s's in; elsewhere outs is empty.
  virtual Work Gather(ConstTensorView in, absl::Span<const TensorView> outs,
                      const RootOptions& options = {}) = 0;
  // out = the root's ins[r]; elsewhere than at the root ins is empty.
  virtual Work Scatter(absl::Span<const ConstTensorView> ins, TensorView out,
                       const RootOptions& options = {}) = 0;
  // out[i] = op over ranks of in[r * out.count + i]; in.count == P * out.count.
  virtual Work ReduceScatter(ConstTensorView in, TensorView out,
                             const ReduceScatterOptions& options = {}) = 0;
  // out[i] = op over ranks of their ins[r][i]; ins[s].count is the same on all ranks, ins[r].count ==
  // out.count.
  virtual Work ReduceScatter(absl::Span<const ConstTensorView> ins, TensorView out,
                             const ReduceScatterOptions& options = {}) = 0;
  // out[s * n, (s + 1) * n) = rank s's in[r * n, (r + 1) * n), n = in.count / P == out.count / P.
  virtual Work AllToAll(ConstTensorView in, TensorView out, const CallOptions& options = {}) = 0;
  // outs[s] = rank s's ins[r]; counts may differ by pair, but both sides must know them.
  virtual Work AllToAll(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                        const CallOptions& options = {}) = 0;
  // Completed when all ranks have called it.
  virtual Work Barrier(const CallOptions& options = {}) = 0;
  // A barrier through the store that leaves the group usable when it fails: DeadlineExceeded names every rank
  // that did not come (on all ranks that did).
  virtual absl::Status MonitoredBarrier(absl::Duration timeout) = 0;

  // One call, one round where the tensors are small: as the single operation on each, in order.
  virtual Work AllReduceCoalesced(absl::Span<const TensorView> tensors,
                                  const AllReduceOptions& options = {}) = 0;
  virtual Work BroadcastCoalesced(absl::Span<const TensorView> tensors, const RootOptions& options = {}) = 0;
  virtual Work AllGatherCoalesced(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                                  const CallOptions& options = {}) = 0;
  virtual Work ReduceScatterCoalesced(absl::Span<const ConstTensorView> ins,
                                      absl::Span<const TensorView> outs,
                                      const ReduceScatterOptions& options = {}) = 0;

  // Point to point, beside the collectives. Messages of one sender and tag arrive in order; both sides give
  // the same count and dtype. Send returns when the buffer may be used again, Recv when it is filled;
  // Recv from kAnySource: Work::source_rank() tells who.
  virtual Work Send(ConstTensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  virtual Work Recv(TensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  virtual Work Isend(ConstTensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  virtual Work Irecv(TensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  // Starts all, in an order in which they cannot block each other; one Work each.
  virtual std::vector<Work> BatchIsendIrecv(absl::Span<const PointToPoint> operations) = 0;

  // Byte strings of any size, by rank ("object" collectives; what is in them is the caller's business).
  // Blocking. `bytes` of BroadcastBytes and `all` of ScatterBytes are read at the root only.
  virtual absl::StatusOr<std::string> BroadcastBytes(absl::string_view bytes,
                                                     const RootOptions& options = {}) = 0;
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view bytes,
                                                                  const CallOptions& options = {}) = 0;
  // Empty elsewhere than at the root.
  virtual absl::StatusOr<std::vector<std::string>> GatherBytes(absl::string_view bytes,
                                                               const RootOptions& options = {}) = 0;
  virtual absl::StatusOr<std::string> ScatterBytes(absl::Span<const std::string> all,
                                                   const RootOptions& options = {}) = 0;

  // Groups of some of this group's ranks. Called by all ranks of this group, in the same order, also by those
  // that will not be in it (who get nullptr). The new group has its own connections and queue and does not
  // need this one to live, only its store.
  // `ranks`: of this group, distinct; rank i of the new group is ranks[i].
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> NewGroup(absl::Span<const int> ranks,
                                                                 absl::string_view backend = "") = 0;
  // Ranks [0, size), [size, 2 size), ...: the one this rank is in. world_size() must be a multiple of size.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> NewSubgroups(int size) = 0;
  // One group for each color, ordered by key, then by rank; a negative color: no group (MPI_Comm_split).
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) = 0;

  // Waits for what is queued, leaves together with the others (bounded by 2 s) and frees everything. Later
  // calls return Aborted. Idempotent.
  virtual void Destroy() = 0;
  // From any thread: ends running and queued operations with Aborted("...reason"), here at once; the other
  // ranks learn that this rank has aborted, and why.
  virtual void Abort(absl::string_view reason) = 0;
  // The first error that broke the group; OK while it works.
  virtual absl::Status error() const = 0;
};

// Meets the other ranks and connects. Blocks until all are there, bounded by options.timeout. Errors name
// the absent ranks (DeadlineExceeded), a rank that is already taken (AlreadyExists), ranks that expect
// another world size or backend (InvalidArgument), or why a backend cannot work here (Unimplemented,
// FailedPrecondition). A world of one needs no network.
//
// With a store of the caller's, which must outlive the group and its subgroups; rank and world_size must be
// set.
absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(Store* store,
                                                               const ProcessGroupOptions& options);
// Through options.init_method; the group and its subgroups keep the store.
absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(const ProcessGroupOptions& options);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROCESS_GROUP_H_
