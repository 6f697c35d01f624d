// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_SHM_SERVER_H_
#define TANDEM_RPC_SHM_SHM_SERVER_H_

// Serves a server's services through shared memory to clients of the same host (link.h). rpc::Server starts
// it next to gRPC, over which clients request shared memory.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "rpc/service.h"
#include "rpc/shm/handshake.h"
#include "rpc/shm/server_connection.h"

namespace tandem::rpc::shm {

// The options of ShmServer::Start.
struct ShmServerOptions {
  size_t max_message_bytes = size_t{1} << 30;
  // Size of the payload memory of each connection, per direction. The kernel commits it when it is first
  // used. A multiple of 2 MiB.
  size_t payload_bytes = size_t{32} << 20;
  // Largest number of serving threads. 0: the number of processors that this process may use.
  int threads = 0;
  // Largest number of connections. Each commits up to twice payload_bytes. At most 1/8 of the descriptors
  // that this process may open.
  size_t max_connections = 512;
};

// Serves some of the connections on one thread. Owned by the server.
class ServingThread {
 public:
  // Starts a thread. FailedPrecondition if no descriptor is left.
  static absl::StatusOr<std::unique_ptr<ServingThread>> Start(std::shared_ptr<Closing> closing);
  ~ServingThread() { Stop(); }

  // Assigns the connection to this thread.
  void Adopt(std::shared_ptr<ServerConnection> connection);
  int connections() const { return count_.load(); }
  // Returns the number of unfinished calls.
  size_t unfinished() const;
  // Ends all connections and waits for the thread. Idempotent.
  void Stop();

 private:
  ServingThread(std::shared_ptr<Closing> closing, ipc::Descriptor event);
  void Run();
  // Moves the connections that were assigned since the last call to `connections`.
  void TakeNew(std::vector<std::shared_ptr<ServerConnection>>* connections);
  // Sleeps until there may be work, or only checks if `wait` is false. Removes the connections that have
  // ended.
  void Poll(bool wait, std::vector<std::shared_ptr<ServerConnection>>* connections);

  const std::shared_ptr<Closing> closing_;
  const ipc::Descriptor event_;  // wakes the thread
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_new_{false};
  std::atomic<int> count_{0};
  mutable absl::Mutex mutex_;
  std::vector<std::shared_ptr<ServerConnection>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<ServerConnection>> new_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// Serves services through shared memory. Thread-safe.
class ShmServer {
 public:
  // Starts serving. FailedPrecondition names what the kernel refuses. InvalidArgument if payload_bytes is out
  // of range.
  static absl::StatusOr<std::unique_ptr<ShmServer>> Start(const ShmServerOptions& options,
                                                          std::vector<Service> services);
  ~ShmServer() { Shutdown(absl::ZeroDuration()); }

  const std::string& socket_name() const { return acceptor_->socket_name(); }
  Tickets& tickets() { return acceptor_->tickets(); }
  // Returns the number of connections.
  size_t connections() const;
  size_t max_connections() const { return max_connections_; }

  // Implements Server::Shutdown.
  void Shutdown(absl::Duration grace);

 private:
  ShmServer(const ShmServerOptions& options, std::vector<Service> services);
  // The loop of accept_thread_: accepts clients.
  void AcceptLoop();
  // Assigns a new connection to a new thread, or to the thread with the fewest connections if there are
  // max_threads_ or no descriptor is left for one more.
  void Take(std::shared_ptr<Link> link, Caller caller);
  // Returns the number of unfinished calls.
  size_t Unanswered() const;

  const ServerLimits limits_;
  const size_t max_threads_;
  const size_t max_connections_;
  const std::shared_ptr<const MethodTable> methods_;
  const ipc::Descriptor stop_event_;
  std::unique_ptr<Acceptor> acceptor_;
  const std::shared_ptr<Closing> closing_ = std::make_shared<Closing>();
  std::thread accept_thread_;
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<ServingThread>> threads_ ABSL_GUARDED_BY(mutex_);  // one, and more when needed
  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

// Returns the service over which clients of this host find `server`. If `server` is nullptr, clients get
// `refusal`. Each offer has a ticket for the identity of the call's caller.
Service OfferService(ShmServer* server, std::string refusal);

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_SHM_SERVER_H_
