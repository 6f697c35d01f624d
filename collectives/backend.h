#ifndef TANDEM_COLLECTIVES_BACKEND_H_
#define TANDEM_COLLECTIVES_BACKEND_H_

// What carries the operations of a group: shared memory, Gloo, MPI, NCCL, or a combination. ProcessGroup
// (the user's face) validates, queues, records and watches; a backend moves and reduces.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/operation.h"
#include "collectives/store/store.h"

namespace tandem::collectives {

// What the ranks told each other when they met.
struct Peer {
  std::string host;     // ipc::HostIdentity() of its machine: equal for processes that can share memory
  std::string address;  // numeric address on which it can be reached
  int64_t pid = 0;
};

// What a backend is made from. Pointers and spans are borrowed for the call, except `store`, which outlives
// the backend.
struct BackendOptions {
  std::string group;  // the group's name, for messages
  int rank = 0;
  int world_size = 1;
  Store* store = nullptr;   // keys of this group and backend alone
  std::vector<Peer> peers;  // by rank
  absl::Time deadline;      // of connecting
  absl::Duration timeout;   // of later waits that no operation bounds (leaving)
};

// Work that goes on, on a device, after it was issued. Thread-safe.
class DeviceWork {
 public:
  virtual ~DeviceWork() = default;
  // OK and true: done. An error: it never will be.
  virtual absl::StatusOr<bool> IsDone() = 0;
  // Blocks this thread until done; DeadlineExceeded at `deadline`.
  virtual absl::Status Wait(absl::Time deadline) = 0;
  // Makes work queued later on `stream` (a cudaStream_t) wait for this, without blocking the thread.
  virtual absl::Status OrderStream(void* stream) = 0;
};

// Errors of every operation: InvalidArgument naming both sides when ranks disagree (Disagreement());
// Unavailable naming the rank that died or left; DeadlineExceeded naming the operation and the ranks that did
// not come; what Abort was given. After any of these the backend is broken: it returns the same error at
// once.
//
// When an operation has returned, whatever its status, the backend touches none of its buffers any more.
class Backend {
 public:
  // Leaves together with the others where that is needed for what they still receive; bounded (2 s).
  virtual ~Backend() = default;
  virtual absl::string_view name() const = 0;  // "shm"

  // OK, or Unimplemented naming backend, operation and dtype. Depends on kind, dtype, reduce and device only,
  // so that all ranks get the same answer before any of them has begun.
  virtual absl::Status Supports(const Operation& operation) const = 0;

  // Runs a collective and blocks until this rank is done with it. One thread at a time, in the group's order.
  virtual absl::Status Run(const Operation& operation) = 0;

  // For devices with streams: issues the collective (or a batch that forms one, as grouped sends and
  // receives do) and returns. The default runs them in order and returns nullptr (done).
  virtual absl::StatusOr<std::shared_ptr<DeviceWork>> Enqueue(absl::Span<const Operation> operations);

  // Point to point: begins a send or recv; thread-safe, beside Run and each other. `done` runs exactly once,
  // on any thread, perhaps before this returns, with the sender's rank. The buffers belong to the backend
  // until then. Messages of one sender with one tag arrive in order; a recv takes the first that matches its
  // source and tag. A send may be done before it is received. A message longer or shorter than its recv, or
  // of another dtype, is InvalidArgument at the receiver, and is dropped.
  using Done = std::function<void(absl::StatusOr<int> source)>;
  virtual void StartPointToPoint(const Operation& operation, Done done) = 0;
  // The same, blocking; override it where the waiting thread can do better than to sleep.
  virtual absl::StatusOr<int> RunPointToPoint(const Operation& operation);

  // Ends everything, from any thread: running and later operations, also this rank's peers', end soon; here
  // with `reason`. Idempotent, does not block on a peer.
  virtual void Abort(const absl::Status& reason) = 0;
};

// How backends are made, by name. `make` may block until options.deadline.
struct BackendFactory {
  std::string name;
  Device::Kind device = Device::Kind::kCpu;
  // Whether its ranks compare fingerprints by themselves. Where they do not, DebugLevel::kDetail does.
  bool compares_fingerprints = true;
  // Whether it could work in this process for these peers; an error says why not ("libnccl.so.2 not found").
  std::function<absl::Status(const BackendOptions&)> viable;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(const BackendOptions&)> make;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_BACKEND_H_
