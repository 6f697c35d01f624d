#include "rpc/grpc/grpc_library.h"

#include <cstdlib>

#include "grpc/grpc.h"

namespace tandem::rpc {

void KeepGrpcLibrary() {
  [[maybe_unused]] static const bool kept = [] {
    // With epoll, gRPC lets one thread of the process wait for all of its connections; each event wakes a
    // second thread, which waits next, and a third, whose event it was. A process of ours has few
    // connections, each with a thread of its own, which so waits for it alone. (The user's choice stays, and
    // programs that this one starts do not inherit ours.)
    const bool ours = std::getenv("GRPC_POLL_STRATEGY") == nullptr;
    if (ours) ::setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
    grpc_init();
    if (ours) ::unsetenv("GRPC_POLL_STRATEGY");
    return true;
  }();
}

}  // namespace tandem::rpc
