// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_CLIENT_CONNECTION_WATCH_H_
#define TANDEM_RPC_GRPC_CLIENT_CONNECTION_WATCH_H_

// Speeds up the discovery of a restored connection. Only used in rpc/grpc.

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/generic/generic_stub.h"
#include "rpc/grpc/completion_loop.h"

namespace tandem::rpc {

// Makes gRPC poll a connection that is being established again. gRPC polls such a connection only for calls
// that wait for it. Calls that fail without a connection, as retried ones do, do not wait for it; gRPC then
// polls only every 5 s. This class therefore keeps one waiting call in flight: a health check, which every
// server supports, and whose response is ignored. Thread-safe.
class ConnectionWatch {
 public:
  // `stub` and `loop` must outlive this object.
  ConnectionWatch(grpc::GenericStub* stub, CompletionLoop* loop);
  // Waits until its call has ended. Must not run on the loop's thread. The loop must still be running.
  ~ConnectionWatch();

  // Makes gRPC poll the connection until it is established, at most 5 s.
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
