// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_SERVER_CONNECTION_H_
#define TANDEM_RPC_SHM_SERVER_CONNECTION_H_

// The server end of one shared-memory connection: its calls.

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
#include "base/timed_wait.h"
#include "rpc/service.h"
#include "rpc/shm/link.h"

namespace tandem::rpc::shm {

// The methods of a server by their full names ("/package.Service/Method"). Immutable.
class MethodTable {
 public:
  explicit MethodTable(std::vector<Service> services);
  MethodTable(const MethodTable&) = delete;
  // Returns the method's handler, or nullptr.
  const Handler* Find(absl::string_view name) const;

 private:
  absl::flat_hash_map<std::string, Handler> handlers_;
};

// The limits of one connection.
struct ServerLimits {
  size_t max_message_bytes = 0;
  size_t max_calls = 1 << 16;  // unfinished calls
  // Responses that wait for space; while there are more, no request is read.
  size_t max_unsent_bytes = 32 << 20;
};

class ShmServerCall;

// The state of a server's shutdown: whether it has begun, and how many calls have ended since. Thread-safe.
class Closing {
 public:
  bool begun() const { return begun_.load(); }
  void Begin() { begun_.store(true); }
  // Counts that a call has its response, or that its connection has ended. Costs nothing before Begin.
  void CallEnded() {
    if (!begun()) return;
    absl::MutexLock lock(&mutex_);
    ++less_;
  }
  // Returns how often CallEnded was counted.
  int64_t less() const {
    absl::MutexLock lock(&mutex_);
    return less_;
  }
  // Waits until less() differs from `before`. Returns false if `deadline` passes first.
  bool AwaitOneLess(int64_t before, absl::Time deadline) {
    absl::MutexLock lock(&mutex_);
    const auto changed = [this, before]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return less_ != before; };
    return AwaitUntil(&mutex_, absl::Condition(&changed), deadline);
  }

 private:
  std::atomic<bool> begun_{false};
  mutable absl::Mutex mutex_;
  int64_t less_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The server end of one connection. One thread serves it; calls may be finished on any thread.
class ServerConnection : public std::enable_shared_from_this<ServerConnection> {
 public:
  ServerConnection(std::shared_ptr<Link> link, Caller caller, std::shared_ptr<const MethodTable> methods,
                   const ServerLimits& limits, std::shared_ptr<Closing> closing)
      : link_(std::move(link)),
        caller_(std::move(caller)),
        methods_(std::move(methods)),
        limits_(limits),
        closing_(std::move(closing)) {}

  // Runs the handlers of requests for a short while (or one handler, if that takes longer) and sends queued
  // responses that now fit. Returns true if there was anything to do.
  bool Serve();
  // Returns true if Serve would find a request to handle.
  bool HasWork() const { return link_->HasIncoming() && !Congested(); }

  // Marks every call as cancelled and ends the connection.
  void Close(const absl::Status& why);
  // Returns the number of unfinished calls.
  size_t unfinished() const;

  Link& link() const { return *link_; }

 private:
  friend class ShmServerCall;
  bool Congested() const { return link_->queued_bytes() > limits_.max_unsent_bytes; }
  void Begin(Message request);
  // Sends an error for a request that was not accepted. A call with the same number that is being handled is
  // not affected.
  void Refuse(const Message& request, const absl::Status& why);
  // Removes the call from `calls_` and sends its response.
  void Respond(uint64_t call, int64_t deadline_ns, absl::StatusOr<Bytes> response);
  // Sends a response.
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
