// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_UNARY_SERVICE_H_
#define TANDEM_RPC_GRPC_SERVER_UNARY_SERVICE_H_

// Serves methods that any gRPC client calls one by one. Only used in rpc/grpc.

#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/completion_queue.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/async_unary_call.h"
#include "grpcpp/support/byte_buffer.h"
#include "rpc/grpc/server/request_memory.h"
#include "rpc/service.h"

namespace tandem::rpc {

// Counts unfinished calls, so that queues are shut down only after the last one. Thread-safe.
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

// A Service registered with gRPC. Methods receive and return raw bytes, so generated stubs of any language
// can call them. They run on the threads that serve streams. gRPC's own threads would wait for the same
// connections, and every event would wake them as well.
class UnaryService : public grpc::Service {
 public:
  // Requests and responses have at most `max_message_bytes`, and at most kMaxUnaryBytes.
  UnaryService(const rpc::Service& service, size_t max_message_bytes, std::shared_ptr<RequestMemory> memory);

  // Accepts calls on `queue` until the server shuts down. Called once for each queue, after the server was
  // built.
  void Serve(grpc::ServerCompletionQueue* queue);
  // Waits for the end of the last call. Called after gRPC has shut the server down.
  void AwaitNone() { calls_.AwaitNone(); }

 private:
  friend class UnaryRpc;
  struct RawMethod {
    std::string path;
    Handler handler;
  };
  void Accept(int method, grpc::ServerCompletionQueue* queue);

  const size_t max_message_bytes_;
  const std::shared_ptr<RequestMemory> memory_;
  const std::string limit_;        // explains max_message_bytes_ in errors
  std::deque<RawMethod> methods_;  // a deque: gRPC keeps pointers to the paths, so elements must not move
  // Counts the calls, and the pending accept operations.
  CallCount calls_;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_UNARY_SERVICE_H_
