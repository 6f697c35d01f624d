#ifndef TANDEM_RPC_GRPC_CLIENT_CONNECTION_WATCH_H_
#define TANDEM_RPC_GRPC_CLIENT_CONNECTION_WATCH_H_

// For rpc/grpc only.

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/generic_stub.h"
#include "rpc/grpc/completion_loop.h"

namespace tandem::rpc {

// Has the loop look at a connection that is being made again. gRPC polls a connection for the calls that wait
// for it. Calls that fail while there is none (those that are tried again) do not wait, and left to itself
// gRPC looks every 5 s. So one call that does wait is kept under way: of the health service, which every
// server has, and whose answer nobody reads. Thread-safe.
class ConnectionWatch {
 public:
  // `stub` and `loop` outlive it.
  ConnectionWatch(grpc::GenericStub* stub, CompletionLoop* loop);
  // Waits until the loop has let go of it: not on the loop's thread, and while the loop runs.
  ~ConnectionWatch();

  // Until the connection is there, for a few seconds at most.
  void Look();

 private:
  struct Waiting;
  void OnOver();

  grpc::GenericStub* const stub_;
  CompletionLoop* const loop_;
  absl::Mutex mutex_;
  std::unique_ptr<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_CLIENT_CONNECTION_WATCH_H_
