// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKEND_H_

// A Backend carries the operations of a group: shared memory, TCP, Gloo, MPI, NCCL, or a combination.
// ProcessGroup, the interface for users, validates, queues, records and watches operations; a backend moves
// and reduces the data.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "cluster/store/store.h"
#include "collectives/operation.h"

namespace tandem::collectives {

// The facts that each rank announces to the others before they connect.
struct RankEndpoint {
  std::string host;     // ipc::HostIdentity() of its machine: equal for processes that can share memory
  std::string address;  // numeric address at which it can be reached
  int64_t pid = 0;
};

// The arguments for making a backend. Pointers and spans are borrowed for the call, except `store`, which
// outlives the backend.
struct BackendOptions {
  std::string group;  // the group's name, for messages
  int rank = 0;
  int world_size = 1;
  cluster::Store* store = nullptr;  // holds keys of this group and backend only
  std::vector<RankEndpoint> peers;  // by rank
  absl::Time deadline;              // of connecting
  absl::Duration timeout;           // of later waits that no operation bounds (leaving)
};

// Work that continues on a device after it was issued. Thread-safe.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  // Returns true once the work is done, false before. An error means that it will never be done.
  virtual absl::StatusOr<bool> IsDone() = 0;
  // Blocks this thread until the work has begun to run, that is until the work before it in its streams is
  // done. An error means that it will never be done. Has no time-out: earlier work of the caller's streams
  // may take any time.
  virtual absl::Status AwaitStart() = 0;
  // Blocks this thread until the work is done. DeadlineExceeded once it has run for `timeout`; the time in
  // which it waits for earlier work of its streams does not count.
  virtual absl::Status Wait(absl::Duration timeout) = 0;
  // Makes work that is queued later on `stream` (a cudaStream_t) wait for this work, without blocking the
  // thread.
  virtual absl::Status OrderStream(void* stream) = 0;
};

struct BackendFactory;

// Moves and reduces data between the ranks of one group. Errors of every operation:
//
//   - InvalidArgument naming both sides when ranks disagree (Disagreement())
//   - Unavailable naming the rank that died or left
//   - DeadlineExceeded naming the operation and the ranks that did not come
//   - the reason that was given to Abort
//
// After any of these the backend is broken: it returns the same error at once.
//
// When an operation has returned, whatever its status, the backend no longer touches any of its buffers.
class Backend {
 public:
  // Leaves the group. Waits, at most 2 s, for the other ranks if they still have to receive data from this
  // one.
  virtual ~Backend() = default;
  virtual absl::string_view name() const = 0;  // "shm"

  // Returns OK, or Unimplemented naming backend, operation and dtype. The result depends on kind, dtype,
  // reduce and device only, so that all ranks get the same result before any of them has begun.
  virtual absl::Status Supports(const Operation& operation) const = 0;

  // Runs a collective and blocks until this rank is done with it. Called by one thread at a time, in the
  // group's order.
  virtual absl::Status Run(const Operation& operation) = 0;

  // Issues a collective (or a batch that forms one, such as grouped sends and receives) on a device with
  // streams, and returns. The default runs the operations in order and returns nullptr, which means done.
  virtual absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations);

  // Begins a send or recv. Thread-safe; may run concurrently with Run and with other calls of itself. `done`
  // runs exactly once with the sender's rank, on any thread, possibly before this call returns. The buffers
  // belong to the backend until then.
  //
  // Messages of one sender with one tag arrive in order; a recv takes the first message that matches its
  // source and tag. A send may be done before it is received. A message longer or shorter than its recv, or
  // of another dtype, gives InvalidArgument at the receiver and is dropped.
  using Done = std::function<void(absl::StatusOr<int> source)>;
  virtual void StartPointToPoint(const Operation& operation, Done done) = 0;
  // Runs a send or recv and blocks until it is done; returns the sender's rank. A backend overrides it if the
  // waiting thread can do better than sleep.
  virtual absl::StatusOr<int> RunPointToPoint(const Operation& operation);

  // Implement ProcessGroup::RegisterBuffer and DeregisterBuffer. Called in the group's order. The defaults
  // return Unimplemented naming the backend.
  virtual absl::Status RegisterBuffer(TensorView buffer);
  virtual absl::Status DeregisterBuffer(TensorView buffer);

  // Returns true if Split can be called: the same on all ranks.
  virtual bool CanSplit() const { return false; }
  // Makes connections for subgroups out of this group's. All ranks of this group call it in the group's
  // order. Ranks with the same non-negative `color` form a subgroup, ordered by `key`, then by rank. Blocks
  // until all ranks have called it and their earlier operations are done, at most until options.deadline.
  // Returns a factory whose `make` gives the subgroup's backend, once; its `make` is empty on ranks with a
  // negative color. `options` are those of the subgroup, without a store. After an error this group is
  // broken.
  virtual absl::StatusOr<BackendFactory> Split(int color, int key, const BackendOptions& options);

  // Ends running and later operations with `reason`, from any thread. The operations of the other ranks end
  // soon as well. Idempotent; does not block on a peer.
  virtual void Abort(const absl::Status& reason) = 0;
};

// Makes backends of one name. `make` may block until options.deadline.
struct BackendFactory {
  std::string name;
  Device::Kind device = Device::Kind::kCpu;
  // True if the backend's ranks compare fingerprints by themselves. Otherwise DebugLevel::kDetail compares
  // them.
  bool compares_fingerprints = true;
  // True if the ranks of a group may be threads of one process. The conformance test runs such backends.
  bool ranks_may_be_threads = true;
  // Returns OK if the backend could work in this process for these peers; an error says why not
  // ("libnccl.so.2 not found").
  std::function<absl::Status(const BackendOptions&)> viable;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions&)> make;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKEND_H_
