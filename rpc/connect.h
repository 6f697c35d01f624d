// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_CONNECT_H_
#define TANDEM_RPC_CONNECT_H_

// Opens a channel to a server over the fastest transport available.

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/channel.h"

namespace tandem::rpc {

// The options of Connect.
struct ConnectOptions {
  ChannelOptions channel;
  // One of the following. The environment variable TANDEM_TRANSPORT overrides it.
  //
  // - "auto": shared memory if the server runs on this host, else gRPC
  // - "grpc": gRPC
  // - "shm": shared memory, or an error
  std::string transport = "auto";
  // Longest time that Connect waits for the server to say whether it offers shared memory. A running server
  // responds at once. If the server is not up yet, calls go over gRPC, and shared memory is tried again
  // later.
  absl::Duration offer_timeout = absl::Seconds(5);
  // Identifies this host when shared memory is requested. Empty: ipc::HostIdentity().
  std::string host = "";
};

// Returns a channel to "host:port" or "unix:/path".
//
// With "grpc" it does not block. Otherwise it blocks while it asks the server for shared memory, at most
// offer_timeout. If "auto" falls back to gRPC, one log line says why.
//
// When the shared memory ends (the server died, or the memory is damaged), the calls in flight fail with
// Unavailable or DataLoss. Later calls go over gRPC, and shared memory is tried again once the server is
// back.
//
// Errors: InvalidArgument (malformed target, unknown transport). With "shm" also FailedPrecondition,
// Unimplemented, Unavailable or DeadlineExceeded, which say why there is no shared memory.
absl::StatusOr<std::unique_ptr<Channel>> Connect(const std::string& target,
                                                 const ConnectOptions& options = {});

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_CONNECT_H_
