#ifndef TANDEM_RPC_SHM_SERVER_CONNECTION_H_
#define TANDEM_RPC_SHM_SERVER_CONNECTION_H_

// The server's end of one connection: its calls.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "rpc/service.h"
#include "rpc/shm/link.h"

namespace tandem::rpc::shm {

// The methods of a server by their full names ("/package.Service/Method"). Immutable.
class MethodTable {
 public:
  explicit MethodTable(std::vector<Service> services);
  MethodTable(const MethodTable&) = delete;
  const Handler* Find(absl::string_view name) const;

 private:
  absl::flat_hash_map<std::string, Handler> handlers_;
};

struct ServerLimits {
  size_t max_message_bytes = 0;
  size_t max_calls = 1 << 16;          // of one connection, that are not yet answered
  size_t max_unsent_bytes = 32 << 20;  // of answers that wait for room; beyond, no request is read
};

class ShmServerCall;

// The end of a server that lets calls finish: whether it has begun, and which it waits for. Thread-safe.
class Closing {
 public:
  bool begun() const { return begun_.load(); }
  void Begin() { begun_.store(true); }
  // A call has been answered, or its connection is gone. Costs nothing before Begin.
  void OneLess() {
    if (!begun()) return;
    absl::MutexLock lock(&mutex_);
    ++less_;
  }
  int64_t less() const {
    absl::MutexLock lock(&mutex_);
    return less_;
  }
  // Waits until there is one less than when less() was `before`; false when `deadline` came first.
  bool AwaitOneLess(int64_t before, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto changed = [this, before]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return less_ != before; };
    return mutex_.AwaitWithDeadline(absl::Condition(&changed), deadline);
  }

 private:
  std::atomic<bool> begun_{false};
  mutable absl::Mutex mutex_;
  int64_t less_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Served by one thread; calls are finished from any.
class ServerConnection : public std::enable_shared_from_this<ServerConnection> {
 public:
  ServerConnection(std::shared_ptr<Link> link, Caller caller, std::shared_ptr<const MethodTable> methods,
                   const ServerLimits& limits, std::shared_ptr<Closing> closing)
      : link_(std::move(link)),
        caller_(std::move(caller)),
        methods_(std::move(methods)),
        limits_(limits),
        closing_(std::move(closing)) {}

  // One turn: runs the handlers of requests for a short while (or one, if it takes longer) and moves the
  // queue of answers. Whether there was anything.
  bool Serve();
  // Whether Serve would find something.
  bool HasWork() const { return link_->HasIncoming() && !Congested(); }

  // Marks every call as cancelled and ends the connection.
  void Close(const absl::Status& why);
  // Calls without an answer.
  size_t unanswered() const;

  Link& link() const { return *link_; }

 private:
  friend class ShmServerCall;
  bool Congested() const { return link_->queued_bytes() > limits_.max_unsent_bytes; }
  void Begin(Message request);
  // Whatever number it bears: a call of this number that is being handled goes on, and counts.
  void Refuse(const Message& request, const absl::Status& why);
  // Of a call in `calls_`, which leaves it.
  void Response(uint64_t call, int64_t deadline_ns, absl::StatusOr<Bytes> response);
  void Reply(uint64_t call, int64_t deadline_ns, absl::StatusOr<Bytes> response);

  const std::shared_ptr<Link> link_;
  const Caller caller_;
  const std::shared_ptr<const MethodTable> methods_;
  const ServerLimits limits_;
  const std::shared_ptr<Closing> closing_;  // of the server, which calls may outlive
  mutable absl::Mutex mutex_;
  absl::flat_hash_map<uint64_t, std::weak_ptr<ShmServerCall>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_SERVER_CONNECTION_H_
