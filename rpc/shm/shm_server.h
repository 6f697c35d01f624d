#ifndef TANDEM_RPC_SHM_SHM_SERVER_H_
#define TANDEM_RPC_SHM_SHM_SERVER_H_

// Serves a server's services to clients of the same host through shared memory (see link.h). rpc::Server
// starts it beside gRPC, over which clients ask for it.

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

struct ShmServerOptions {
  size_t max_message_bytes = size_t{1} << 30;
  // Of each connection, each way: memory that is committed when first used. A multiple of 2 MiB.
  size_t payload_bytes = size_t{32} << 20;
  // Serving threads at most; 0: as many as this process may use processors.
  int threads = 0;
};

// Serves some connections on one thread. Owned by the server.
class ServingThread {
 public:
  explicit ServingThread(std::shared_ptr<Closing> closing);
  ~ServingThread() { Stop(); }

  void Adopt(std::shared_ptr<ServerConnection> connection);
  int connections() const { return count_.load(); }
  size_t unanswered() const;
  // Ends all connections, waits for the thread. Idempotent.
  void Stop();

 private:
  void Run();
  void TakeNew(std::vector<std::shared_ptr<ServerConnection>>* connections);
  // Sleeps until there may be work, or only looks (`wait` false); removes the connections that have ended.
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

// Thread-safe.
class ShmServer {
 public:
  // FailedPrecondition naming what the kernel refuses.
  static absl::StatusOr<std::unique_ptr<ShmServer>> Start(const ShmServerOptions& options,
                                                          std::vector<Service> services);
  ~ShmServer() { Shutdown(absl::ZeroDuration()); }

  const std::string& socket_name() const { return acceptor_->socket_name(); }
  const std::string& secret() const { return acceptor_->secret(); }
  size_t connections() const;

  // As Server::Shutdown.
  void Shutdown(absl::Duration grace);

 private:
  ShmServer(const ShmServerOptions& options, std::vector<Service> services);
  void Greet();
  void Take(std::shared_ptr<Link> link, Caller caller);
  size_t Unanswered() const;

  const ServerLimits limits_;
  const size_t max_threads_;
  const std::shared_ptr<const MethodTable> methods_;
  const ipc::Descriptor stop_event_;
  std::unique_ptr<Acceptor> acceptor_;
  const std::shared_ptr<Closing> closing_ = std::make_shared<Closing>();
  std::thread greeter_;
  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<ServingThread>> threads_ ABSL_GUARDED_BY(mutex_);  // made when needed
  absl::Mutex shutdown_mutex_;
  bool shut_down_ ABSL_GUARDED_BY(shutdown_mutex_) = false;
};

// The service over which clients of this host find `server`; where it is nullptr they are told `refusal`.
Service OfferService(const ShmServer* server, std::string refusal);

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_SHM_SERVER_H_
