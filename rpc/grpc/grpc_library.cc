// SPDX-License-Identifier: Apache-2.0
#include "rpc/grpc/grpc_library.h"

#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "grpcpp/grpcpp.h"

namespace tandem::rpc {

std::string GrpcVersion() { return grpc::Version(); }

absl::Status KeepGrpcLibrary() {
  static const pid_t process = [] {
    // Under epoll, one gRPC thread waits for all connections of the process. Each event then wakes a second
    // thread, which waits next, and a third, which handles the event. A Tandem process has few connections,
    // each polled by its own thread; under the poll strategy that thread alone waits for it. A value that the
    // user has set is kept, and programs that this process starts do not inherit ours.
    const bool ours = std::getenv("GRPC_POLL_STRATEGY") == nullptr;
    if (ours) ::setenv("GRPC_POLL_STRATEGY", "poll", /*overwrite=*/0);
    grpc_init();
    if (ours) ::unsetenv("GRPC_POLL_STRATEGY");
    // gRPC writes errors to stderr that it also returns: that a port is taken, for example. Who asks for its
    // log gets it as it is.
    if (std::getenv("GRPC_VERBOSITY") == nullptr && std::getenv("GRPC_TRACE") == nullptr) {
      gpr_set_log_function([](gpr_log_func_args* args) {
        LogDebug(absl::StrCat("gRPC: ", args->message, " (", args->file, ":", args->line, ")"));
      });
    }
    return ::getpid();
  }();
  if (process == ::getpid()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this process was forked from process ", process,
                   ", which had used gRPC, and gRPC's threads do not survive a "
                   "fork; fork before the first connection or server, or start the process anew (Python: "
                   "multiprocessing's "
                   "methods spawn and forkserver)"));
}

}  // namespace tandem::rpc
