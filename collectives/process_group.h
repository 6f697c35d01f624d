// SPDX-License-Identifier: Apache-2.0
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
#include "cluster/store/store.h"
#include "collectives/backend.h"
#include "collectives/operation.h"
#include "collectives/work.h"

namespace tandem::collectives {

class FlightRecorder;

// How thoroughly ranks check each other. A program that leaves kFromEnv takes TANDEM_DEBUG=OFF, INFO or
// DETAIL. kDetail compares fingerprints before every operation on every backend (shm and tcp always do).
enum class DebugLevel { kFromEnv, kOff, kInfo, kDetail };

struct ProcessGroupOptions {
  // The backend: "auto", a name such as "tcp" or "shm+tcp" (docs/collectives.md lists them), or one per
  // device: "cpu:auto,cuda:nccl". Empty: TANDEM_BACKEND, or auto. A world of one copies in its own memory,
  // whatever CPU backend is named.
  //
  // "auto" selects shm if all ranks are on one host, tcp if each rank is alone on its host, else shm+tcp.
  // If that is impossible (containers that share no memory), all ranks take tcp.
  std::string backend;
  std::string name = "default";  // groups of one store need distinct names
  int rank = -1;                 // -1: taken from init_method
  int world_size = -1;
  // The ranks of this group as ranks of the job, for a group whose members a program has chosen itself:
  // element r is the global rank of rank r. Errors name them. Empty: they are the same.
  std::vector<int> global_ranks;
  // How ranks find each other if InitProcessGroup is given no store: "env://" (RANK, WORLD_SIZE, MASTER_ADDR,
  // MASTER_PORT), "tcp://host:port" (rank 0 serves it), "file:///path" (on a shared file system),
  // "etcd://..." (store_url.h).
  std::string init_method = "env://";
  // Bounds the rendezvous, and every operation that is not given a timeout of its own.
  absl::Duration timeout = absl::Seconds(60);
  // Bounds, instead of `timeout`, operations on GPU tensors that are not given a timeout of their own. It
  // counts from the moment at which an operation begins to run on the GPU. The default is torch's for NCCL.
  absl::Duration cuda_timeout = absl::Minutes(10);
  // Name or address of the network interface to use. Empty: TANDEM_INTERFACE, or the interface that reaches
  // the store.
  std::string interface_address;
  // Ranks with equal `host` share memory. Empty: TANDEM_HOST, or ipc::HostIdentity(), which distinguishes
  // machines and containers with networks of their own.
  std::string host;
  DebugLevel debug = DebugLevel::kFromEnv;
  // Shared by the groups of a process. nullptr: the group makes its own, as the environment says
  // (diagnostics/flight_recorder.h).
  std::shared_ptr<FlightRecorder> recorder;
  // The rendezvous round (epoch) of the job that this process belongs to. 0: TANDEM_EPOCH under env://, else
  // none. Ranks of different epochs do not connect. A rank whose epoch is over is refused, also while it
  // waits: FailedPrecondition, "worker/3 belongs to epoch 4; the job is at epoch 5".
  int64_t epoch = 0;
  // Called several times a second while ranks wait for each other; an error ends the wait with that error.
  // Must not block.
  std::function<absl::Status()> should_continue;
  // Backends in addition to the built-in ones, looked up first: for tests and plugins.
  std::vector<BackendFactory> extra_backends;
};

// Options of the calls. With `async` the call returns at once and the operation runs in the group's order on
// the group's thread; otherwise it has run, in this thread, when the call returns. A `timeout` of zero means
// the group's timeout. `stream` is the cudaStream_t that produces GPU tensors: the operation runs after the
// work that the stream holds at the call. nullptr means CUDA's legacy default stream, which waits for all
// blocking streams; with per-thread default streams, pass cudaStreamPerThread. CPU tensors ignore it.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;  // of kPremulSum
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
  void* stream = nullptr;
};
using ReduceScatterOptions = AllReduceOptions;
struct ReduceOptions {
  int root = 0;
  ReduceOp op = ReduceOp::kSum;
  double factor = 1.0;
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
  void* stream = nullptr;
};
struct RootOptions {
  int root = 0;
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
  void* stream = nullptr;
};
struct CallOptions {
  bool async = false;
  absl::Duration timeout = absl::ZeroDuration();
  void* stream = nullptr;
};
struct PointToPointOptions {
  uint32_t tag = 0;
  absl::Duration timeout = absl::ZeroDuration();
  void* stream = nullptr;
};
struct PointToPoint {  // one entry of BatchIsendIrecv; torch's P2POp
  enum class Kind { kSend, kRecv };
  Kind kind = Kind::kSend;
  int peer = 0;
  TensorView tensor;  // a send only reads it
  uint32_t tag = 0;
  void* stream = nullptr;  // as in PointToPointOptions
};

// A group of ranks; a process may have any number of them. All ranks of a group call the same collectives in
// the same order with the same dtypes and sizes. Any thread may call: calls are serialised. Threads that race
// decide the order, which must be the same on all ranks. Groups do not wait for each other.
//
// Buffers belong to the operation until its Work is completed. In the formulas below, P is world_size() and r
// is rank().
//
// Errors are in the returned Work. After these two, nothing was sent and the group is as before:
//
//   - InvalidArgument for what this rank alone can detect: a root out of range, counts that do not fit
//   - Unimplemented naming backend, operation and dtype
//
// After the others the group is broken, and later calls return the first error again:
//
//   - InvalidArgument naming both sides if ranks disagree
//   - DeadlineExceeded naming the operation and the ranks that did not come
//   - Unavailable naming the rank that died or left
//   - Aborted after Abort or Destroy
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;  // as Destroy()

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  virtual const std::string& name() const = 0;
  // Returns the name of the backend that serves `device`, such as "shm"; "" if there is none.
  virtual std::string backend(Device device = Device::Cpu()) const = 0;
  // Returns false after Destroy, Abort or an error that broke the group.
  virtual bool is_initialized() const = 0;
  // The ranks of this group as ranks of the first group, and the reverse. InvalidArgument if there is no such
  // rank.
  virtual absl::Span<const int> global_ranks() const = 0;
  virtual absl::StatusOr<int> GlobalRank(int group_rank) const = 0;
  virtual absl::StatusOr<int> GroupRank(int global_rank) const = 0;

  // tensor[i] = op over ranks of tensor[i]; the same bits on every rank.
  virtual Work AllReduce(TensorView tensor, const AllReduceOptions& options = {}) = 0;
  // Out of place: out[i] = op over ranks of in[i]. in and out have the same count.
  virtual Work AllReduce(ConstTensorView in, TensorView out, const AllReduceOptions& options = {}) = 0;
  // The root's `tensor` gets the result of AllReduce; the other ranks' `tensor` is only read.
  virtual Work Reduce(TensorView tensor, const ReduceOptions& options = {}) = 0;
  // Every rank gets the root's elements.
  virtual Work Broadcast(TensorView tensor, const RootOptions& options = {}) = 0;
  // out[s * in.count, (s + 1) * in.count) = rank s's in; out.count == P * in.count on every rank.
  virtual Work AllGather(ConstTensorView in, TensorView out, const CallOptions& options = {}) = 0;
  // outs[s] = rank s's in. Counts may differ by rank, and every rank must know them: outs.size() == P,
  // outs[r].count == in.count.
  virtual Work AllGather(ConstTensorView in, absl::Span<const TensorView> outs,
                         const CallOptions& options = {}) = 0;
  // outs[s] = rank s's in at the root; on other ranks outs is empty.
  virtual Work Gather(ConstTensorView in, absl::Span<const TensorView> outs,
                      const RootOptions& options = {}) = 0;
  // out = the root's ins[r]; on ranks other than the root ins is empty.
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
  // The Work is completed when all ranks have called it.
  virtual Work Barrier(const CallOptions& options = {}) = 0;
  // Runs a barrier through the store. An error leaves the group usable. DeadlineExceeded names every rank
  // that did not come, on all ranks that did.
  virtual absl::Status MonitoredBarrier(absl::Duration timeout) = 0;

  // Each call has the effect of the single operation on each tensor, in order. Small tensors share one round
  // of messages.
  virtual Work AllReduceCoalesced(absl::Span<const TensorView> tensors,
                                  const AllReduceOptions& options = {}) = 0;
  virtual Work BroadcastCoalesced(absl::Span<const TensorView> tensors, const RootOptions& options = {}) = 0;
  virtual Work AllGatherCoalesced(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                                  const CallOptions& options = {}) = 0;
  virtual Work ReduceScatterCoalesced(absl::Span<const ConstTensorView> ins,
                                      absl::Span<const TensorView> outs,
                                      const ReduceScatterOptions& options = {}) = 0;

  // Point to point; independent of the collectives. Messages of one sender and tag arrive in order. Both
  // sides give the same count and dtype. Send returns when the buffer may be used again, Recv when it is
  // filled. After a Recv from kAnySource, Work::source_rank() returns the sender.
  virtual Work Send(ConstTensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  virtual Work Recv(TensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  virtual Work Isend(ConstTensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  virtual Work Irecv(TensorView tensor, int peer, const PointToPointOptions& options = {}) = 0;
  // Starts all operations, in an order in which they cannot block each other; returns one Work each.
  virtual std::vector<Work> BatchIsendIrecv(absl::Span<const PointToPoint> operations) = 0;

  // Byte strings of any size, by rank (the "object" collectives; the caller defines the content). The calls
  // block. Only the root's `bytes` of BroadcastBytes and `all` of ScatterBytes are read.
  virtual absl::StatusOr<std::string> BroadcastBytes(absl::string_view bytes,
                                                     const RootOptions& options = {}) = 0;
  virtual absl::StatusOr<std::vector<std::string>> AllGatherBytes(absl::string_view bytes,
                                                                  const CallOptions& options = {}) = 0;
  // Returns an empty vector on ranks other than the root.
  virtual absl::StatusOr<std::vector<std::string>> GatherBytes(absl::string_view bytes,
                                                               const RootOptions& options = {}) = 0;
  virtual absl::StatusOr<std::string> ScatterBytes(absl::Span<const std::string> all,
                                                   const RootOptions& options = {}) = 0;

  // Registers the memory of a buffer on a GPU which operations of this group use again and again, as a whole
  // or in parts (ncclCommRegister). NCCL may then move data of such operations without a copy; results do not
  // change. A call concerns this rank only, but NCCL gains by it only if all ranks register their buffers of
  // an operation. Takes its turn among the group's operations, and blocks meanwhile. The memory must stay
  // allocated until DeregisterBuffer, or until the group is destroyed.
  //
  // Unimplemented: the backend of the buffer's device has no registration; of backend nccl, the library is
  // older than 2.19. InvalidArgument: the buffer is empty, or not in the memory of the group's GPU.
  // AlreadyExists: a buffer that begins there is registered. Unavailable: NCCL refuses; the message has its
  // reason. After an error the group works as before.
  virtual absl::Status RegisterBuffer(TensorView buffer) = 0;
  // Ends the registration of a buffer. All operations that use it must have ended. NotFound: no buffer that
  // begins there is registered.
  virtual absl::Status DeregisterBuffer(TensorView buffer) = 0;

  // Makes a group of `ranks`, which are distinct ranks of this group; rank i of the new group is ranks[i].
  // All ranks of this group must call it, in the same order. Ranks outside the new group get nullptr. The new
  // group has its own connections and queue. It outlives this group, but not the store. If `backend` is empty
  // and this group has NCCL 2.18 or later, the new group's GPU connections are split from this group's
  // (ncclCommSplit): the call then waits on all ranks until all have called it. So do NewSubgroups and Split.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> NewGroup(absl::Span<const int> ranks,
                                                                 absl::string_view backend = "") = 0;
  // Makes groups of the ranks [0, size), [size, 2 size), ... and returns the one that contains this rank.
  // world_size() must be a multiple of size.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> NewSubgroups(int size) = 0;
  // Makes one group for each color, ordered by key, then by rank. Ranks with a negative color get no group,
  // as in MPI_Comm_split.
  virtual absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color, int key) = 0;

  // Waits for queued operations, leaves together with the other ranks (at most 2 s) and frees everything.
  // Operations that run on a GPU end by their own time-outs, and leaving takes at most `timeout` there: it
  // never aborts other groups of the GPU.
  // Later calls return Aborted. Idempotent.
  virtual void Destroy() = 0;
  // Ends running and queued operations with Aborted("...reason"), at once on this rank. May be called from
  // any thread. The other ranks learn that this rank has aborted, and the reason.
  virtual void Abort(absl::string_view reason) = 0;
  // Returns the first error that broke the group; OK while it works.
  virtual absl::Status error() const = 0;
};

// Finds the other ranks and connects to them. Blocks until all have come, at most options.timeout. A world of
// one needs no network. Errors:
//
//   - DeadlineExceeded naming the absent ranks
//   - AlreadyExists if another process has this rank
//   - InvalidArgument naming ranks that expect another world size or backend
//   - Unimplemented or FailedPrecondition saying why a backend cannot work here
//
// This overload uses the caller's `store`, which must outlive the group and its subgroups; options.rank and
// options.world_size must be set.
absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(cluster::Store* store,
                                                               const ProcessGroupOptions& options);
// This overload opens the store that options.init_method names; the group and its subgroups own it.
absl::StatusOr<std::unique_ptr<ProcessGroup>> InitProcessGroup(const ProcessGroupOptions& options);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROCESS_GROUP_H_
