#ifndef TANDEM_RPC_SERVER_H_
#define TANDEM_RPC_SERVER_H_

// A server for transport-independent services: over gRPC, with its health checking and reflection, and
// through shared memory with clients of the same host.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/epoch_gate.h"
#include "rpc/service.h"

namespace tandem::rpc {

struct ServerOptions {
  std::string listen = "127.0.0.1:0";  // "host:port"; port 0 lets the kernel pick; "unix:/path" works too
  size_t max_message_bytes = size_t{1} << 30;
  absl::Duration min_keepalive_interval = absl::Seconds(5);  // clients that ping more often are cut off
  // "auto": gRPC, and shared memory with clients of this host that ask for it (rpc/connect.h); "grpc": gRPC
  // only.
  std::string transport = "auto";
  // Memory shared with each such client, each way; committed when first used. A multiple of 2 MiB.
  size_t shared_memory_bytes = size_t{32} << 20;
  // Threads that read requests, run handlers and write answers; connections are dealt to them. 0: half of the
  // machine's processors, at least 2 and at most 8.
  int threads = 0;
  // Of each connection, to bound memory in flight. Answers that its client does not read: with more waiting,
  // no further requests are taken from it, until it reads.
  size_t max_unsent_response_bytes = size_t{64} << 20;
  // Requests that are unanswered: more are refused with ResourceExhausted, unless there is but one.
  size_t max_held_request_bytes = size_t{1} << 30;
  // Which callers are served; nullptr: all. (Health and reflection are.)
  std::shared_ptr<EpochGate> gate = nullptr;
};

// Thread-safe. Owned by whoever started it; the destructor shuts down within 5 seconds.
class Server {
 public:
  // Binds and serves. The handlers in `services` are called on RPC threads until Shutdown returns, so what
  // they capture must outlive that. Errors: InvalidArgument (malformed address), Unavailable (cannot bind:
  // says which address and, when it is in use, what to do).
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       std::vector<Service> services);

  virtual ~Server() = default;
  virtual int port() const = 0;  // the bound port; 0 for unix sockets
  // What gRPC health says of `service`, or, for "", of the server as a whole; SERVING until told otherwise.
  // Nothing happens once the server shuts down.
  virtual void SetServing(const std::string& service, bool serving) = 0;
  // Stops taking calls (health turns NOT_SERVING), lets running ones finish for `grace`, cancels the rest;
  // returns when no handler runs any more. A parked call that was cancelled may still be finished later:
  // nothing happens then. Idempotent. Never call it, or the destructor, from a handler or from a channel's
  // `done`: it waits for them.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SERVER_H_
