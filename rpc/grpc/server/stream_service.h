#ifndef TANDEM_RPC_GRPC_SERVER_STREAM_SERVICE_H_
#define TANDEM_RPC_GRPC_SERVER_STREAM_SERVICE_H_

// For rpc/grpc only: a server's streams, and the threads that serve them.

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer_pool.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_builder.h"
#include "rpc/grpc/completion_loop.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::rpc {

class GrpcServerStream;

// tandem.v1.Data: takes streams and gives each to one of a few threads, where all of its frames are read, its
// handlers run and most of its answers are written. Streams of a thread take turns, a frame or a batch of
// short ones each, so none can starve another. Thread-safe but for what is said.
class StreamService : public grpc::Service {
 public:
  StreamService(const ServerOptions& options, const std::vector<rpc::Service>& services);
  ~StreamService() override { Stop(); }

  // Before the server is built.
  void AddTo(grpc::ServerBuilder* builder);
  // The queues of its threads, once the server is built: others may have them served, too, before Serve.
  std::vector<grpc::ServerCompletionQueue*> queues() const;
  // Once, when it is.
  void Serve();
  // From now on calls are refused; a stream ends when its last call is answered.
  void Drain();
  // When gRPC has shut the server down: returns when no handler runs any more. Idempotent; not on one of the
  // threads.
  void Stop();

  const ServerOptions& options() const { return options_; }
  const Handler* Find(const std::string& path) const;
  // Memory that long requests are put together in.
  BufferPool* requests() { return &requests_; }
  bool draining() const { return draining_.load(std::memory_order_relaxed); }

 private:
  friend class GrpcServerStream;
  struct Loop {
    grpc::ServerCompletionQueue* queue;
    std::unique_ptr<CompletionLoop> loop;
  };

  void Accept(CompletionLoop* loop, grpc::ServerCompletionQueue* queue);
  void Add(std::shared_ptr<GrpcServerStream> stream);
  void Remove(const std::shared_ptr<GrpcServerStream>& stream);

  const ServerOptions options_;
  absl::flat_hash_map<std::string, Handler> handlers_;
  BufferPool requests_;
  std::vector<Loop> loops_;
  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  absl::flat_hash_set<std::shared_ptr<GrpcServerStream>> streams_
      ABSL_GUARDED_BY(mutex_);  // with operations under way
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_STREAM_SERVICE_H_
