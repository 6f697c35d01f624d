#ifndef TANDEM_RPC_GRPC_SERVER_HEALTH_SERVICE_H_
#define TANDEM_RPC_GRPC_SERVER_HEALTH_SERVICE_H_

// For rpc/grpc only: grpc.health.v1.Health, on our own threads (gRPC's default one brings threads of its
// own, which wait for all connections).

#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/impl/service_type.h"
#include "rpc/grpc/server/unary_service.h"
#include "rpc/service.h"

namespace tandem::rpc {

class WatchRpc;

// Thread-safe. Knows "", the server as a whole, which serves from the beginning.
class HealthService {
 public:
  HealthService();

  // To be registered with the server.
  grpc::Service* service() { return &methods_; }
  // As UnaryService's.
  void Serve(grpc::ServerCompletionQueue* queue);
  void AwaitNone();

  void SetServing(const std::string& service, bool serving);
  // Everything is NOT_SERVING, for good; watchers hear it, and their calls end.
  void Shutdown();

 private:
  friend class WatchRpc;
  // grpc.health.v1.HealthCheckResponse.ServingStatus.
  enum Status : char { kServing = 1, kNotServing = 2, kServiceUnknown = 3 };
  // Check, and Watch beside it.
  class Methods : public UnaryService {
   public:
    explicit Methods(const rpc::Service& check);
    using grpc::Service::RequestAsyncServerStreaming;
  };

  rpc::Service MakeCheck();
  Status StatusOf(const std::string& service) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AcceptWatch(grpc::ServerCompletionQueue* queue);

  mutable absl::Mutex mutex_;
  bool shut_down_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<std::string, bool> serving_ ABSL_GUARDED_BY(mutex_) = {{"", true}};
  std::set<std::shared_ptr<WatchRpc>> watchers_ ABSL_GUARDED_BY(mutex_);
  Methods methods_;
  CallCount watches_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_HEALTH_SERVICE_H_
