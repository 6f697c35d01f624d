#ifndef TANDEM_RPC_GRPC_SERVER_UNARY_SERVICE_H_
#define TANDEM_RPC_GRPC_SERVER_UNARY_SERVICE_H_

// For rpc/grpc only: methods that any gRPC client calls one by one.

#include <deque>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_unary_call.h"
#include "grpcpp/support/byte_buffer.h"
#include "rpc/service.h"

namespace tandem::rpc {

// How many calls there are, so that queues can be shut down after the last. Thread-safe.
class CallCount {
 public:
  void Add() {
    absl::MutexLock lock(&mutex_);
    ++count_;
  }
  void Remove() {
    absl::MutexLock lock(&mutex_);
    --count_;
  }
  void AwaitNone() {
    absl::MutexLock lock(&mutex_);
    const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return count_ == 0; };
    mutex_.Await(absl::Condition(&none));
  }

 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A Service as gRPC knows it. Methods take and give raw bytes, so generated stubs of any language can call
// them. They run on the threads that serve streams: gRPC's own would wait for the same connections, and every
// event would wake them too.
class UnaryService : public grpc::Service {
 public:
  UnaryService(const rpc::Service& service, size_t max_message_bytes);

  // Once for each queue of the server, when that is built: takes calls there, until the server shuts down.
  void Serve(grpc::ServerCompletionQueue* queue);
  // When gRPC has shut the server down: waits for the last call's end.
  void AwaitNone() { calls_.AwaitNone(); }

 private:
  friend class UnaryRpc;
  struct RawMethod {
    std::string path;
    Handler handler;
  };
  void Accept(int method, grpc::ServerCompletionQueue* queue);

  const size_t max_message_bytes_;
  std::deque<RawMethod> methods_;  // never moves: gRPC keeps pointers to the paths
  CallCount calls_;                // and methods that wait for one
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_UNARY_SERVICE_H_
