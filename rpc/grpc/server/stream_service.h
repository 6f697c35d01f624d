// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_STREAM_SERVICE_H_
#define TANDEM_RPC_GRPC_SERVER_STREAM_SERVICE_H_

// A server's streams and the threads that serve them. Only used in rpc/grpc.

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
#include "rpc/grpc/server/request_memory.h"
#include "rpc/server.h"
#include "rpc/service.h"

namespace tandem::rpc {

class GrpcServerStream;

// Serves tandem.v1.Data. It assigns each stream to one of a few threads. That thread reads all frames of the
// stream, runs its handlers and writes most of its responses. The streams of a thread are served round-robin,
// one frame or one batch of short frames at a time, so none can starve another. Thread-safe except where
// noted.
class StreamService : public grpc::Service {
 public:
  StreamService(const ServerOptions& options, const std::vector<rpc::Service>& services,
                std::shared_ptr<RequestMemory> memory);
  ~StreamService() override { Stop(); }

  // Adds the service and its queues to `builder`. Called before the server is built.
  void AddTo(grpc::ServerBuilder* builder);
  // Returns the queues of its threads. Called once the server is built. Before Serve, other services may be
  // started on these queues.
  std::vector<grpc::ServerCompletionQueue*> queues() const;
  // Starts serving. Called once, after the server was built.
  void Serve();
  // Refuses new calls from now on. A stream ends when its last call has its response.
  void Drain();
  // Returns when no handler runs any more. Called after gRPC has shut the server down. Idempotent. Must not
  // be called on one of the service's threads.
  void Stop();

  const ServerOptions& options() const { return options_; }
  const Handler* Find(const std::string& path) const;
  // Returns the limits of the requests in memory.
  RequestMemory* memory() { return memory_.get(); }
  // Returns the memory in which long requests are assembled.
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
  const std::shared_ptr<RequestMemory> memory_;
  absl::flat_hash_map<std::string, Handler> handlers_;
  BufferPool requests_;
  std::vector<Loop> loops_;
  std::atomic<bool> draining_{false};
  absl::Mutex mutex_;
  // The streams that have operations in progress.
  absl::flat_hash_set<std::shared_ptr<GrpcServerStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_STREAM_SERVICE_H_
