// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_HEALTH_SERVICE_H_
#define TANDEM_RPC_GRPC_SERVER_HEALTH_SERVICE_H_

// Implements grpc.health.v1.Health on the server's own threads. gRPC's default implementation starts threads
// of its own, which wait for all connections.

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/impl/service_type.h"
#include "rpc/grpc/server/request_memory.h"
#include "rpc/grpc/server/unary_service.h"
#include "rpc/service.h"

namespace tandem::rpc {

class WatchRpc;

// The health of a server's services. Thread-safe. Reports "", the server as a whole, as SERVING from the
// beginning.
class HealthService {
 public:
  explicit HealthService(std::shared_ptr<RequestMemory> memory);

  // Returns the gRPC service to register with the server.
  grpc::Service* service() { return &methods_; }
  // Like the functions of UnaryService with these names.
  void Serve(grpc::ServerCompletionQueue* queue);
  void AwaitNone();

  // Sets the state of `service`. No effect after Shutdown.
  void SetServing(const std::string& service, bool serving);
  // Sets all services to NOT_SERVING, for good. Watchers are told, and their calls end.
  void Shutdown();

 private:
  friend class WatchRpc;
  // grpc.health.v1.HealthCheckResponse.ServingStatus.
  enum Status : char { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
  // Serves Check, and registers the method Watch.
  class Methods : public UnaryService {
   public:
    Methods(const rpc::Service& check, std::shared_ptr<RequestMemory> memory);
    using grpc::Service::RequestAsyncServerStreaming;
  };

  rpc::Service MakeCheck();
  Status StatusOf(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcceptWatch(grpc::ServerCompletionQueue* queue);

  mutable absl::Mutex mutex_;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_) = {{"", true}};
  std::set<std::shared_ptr<WatchRpc>> watchers_ ABSL_GUARDED_BY(mutex_);
  const std::shared_ptr<RequestMemory> memory_;
  Methods methods_;
  CallCount watches_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_HEALTH_SERVICE_H_
