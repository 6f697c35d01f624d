#ifndef TANDEM_RPC_CONNECT_H_
#define TANDEM_RPC_CONNECT_H_

// A channel to a server, over the quickest way there is.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/channel.h"

namespace tandem::rpc {

struct ConnectOptions {
  ChannelOptions channel;
  // "auto": shared memory with a server of this host, else gRPC. "grpc": gRPC. "shm": shared memory or an
  // error. The environment's TANDEM_TRANSPORT goes before.
  std::string transport = "auto";
  // How long Connect waits for the server to say whether it shares memory. It answers at once, or is not up
  // yet: then gRPC serves, and shared memory is tried again later.
  absl::Duration offer_timeout = absl::Seconds(5);
  std::string host = "";  // what this host is called in the question; empty: ipc::HostIdentity()
};

// A channel to "host:port" or "unix:/path". Blocks while it asks the server for shared memory, at most
// offer_timeout; with "grpc" not at all. Where "auto" goes over gRPC, one line of log says why. When the
// shared memory ends (the server dies, the memory is damaged), its calls fail with Unavailable or DataLoss,
// the next ones go over gRPC, and shared memory is tried again once the server is back. Errors:
// InvalidArgument (malformed target, unknown transport); for "shm" why there is none: FailedPrecondition,
// Unavailable or DeadlineExceeded.
absl::StatusOr<std::unique_ptr<Channel>> Connect(const std::string& target,
                                                 const ConnectOptions& options = {});

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CONNECT_H_
