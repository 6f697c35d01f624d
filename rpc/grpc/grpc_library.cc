// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/grpc_library.h"

#include <cstdlib>

#include "grpc/grpc.h"

namespace tandem::rpc {

void KeepGrpcLibrary() {
  [[maybe_unused]] static const bool kept = [] {
    // Under epoll, one gRPC thread waits for all connections of the process. Each event then wakes a second
    // thread, which waits next, and a third, which handles the event. A Tandem process has few connections,
    // each polled by its own thread; under the poll strategy that thread alone waits for it. A value that the
    // user has set is kept, and programs that this process starts do not inherit ours.
    const bool ours = std::getenv("GRPC_POLL_STRATEGY") == nullptr;
    if (ours) ::setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
    grpc_init();
    if (ours) ::unsetenv("GRPC_POLL_STRATEGY");
    return true;
  }();
}

}  // namespace tandem::rpc
