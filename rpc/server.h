// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SERVER_H_
#define TANDEM_RPC_SERVER_H_

// Serves transport-independent services over gRPC, with its health checking and, if wanted, its reflection,
// and through shared memory to clients of the same host.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/service.h"

namespace tandem::rpc {

class EpochGate;

class JobKey;

// The options of Server::Start.
struct ServerOptions {
  // "host:port", where port 0 lets the kernel choose one, or "unix:/path".
  std::string listen = "127.0.0.1:0";
  // Largest size of one request or response.
  size_t max_message_bytes = size_t{1} << 30;
  // A gRPC client that sends keepalive pings more often than this is disconnected.
  absl::Duration min_keepalive_interval = absl::Seconds(5);
  // "auto": gRPC, and shared memory for clients of this host that ask for it (rpc/connect.h). "grpc": gRPC
  // only.
  std::string transport = "auto";
  // Size of the memory shared with each such client, per direction. The kernel commits it when it is first
  // used. A multiple of 2 MiB.
  size_t shared_memory_bytes = size_t{32} << 20;
  // Number of threads that read requests, run handlers and write responses, for gRPC and for shared memory
  // each. Every connection is assigned to one thread. 0: for gRPC half of the machine's processors, at least
  // 2 and at most 8; for shared memory at most one per processor that this process may use, started as
  // needed.
  int threads = 0;
  // Limits the total size of the responses that one gRPC connection's client has not read yet. While more are
  // waiting, the server reads no further requests from this connection. A shared-memory connection is limited
  // by shared_memory_bytes instead.
  size_t max_unsent_response_bytes = size_t{64} << 20;
  // Limits the total size of the unfinished requests of one gRPC connection. Further requests fail with
  // ResourceExhausted, except if there is no other.
  size_t max_held_request_bytes = size_t{1} << 30;
  // Limits the same of all connections over gRPC together. Beyond it, requests fail with ResourceExhausted.
  // 0: half of the memory that this process may use (base/cgroup.h).
  size_t max_held_request_bytes_in_all = 0;
  // Limits the bytes of messages over TCP that have arrived in part, of all connections together. Beyond it,
  // the connections with the most such bytes are closed, and a warning is logged. 0: a quarter of the memory
  // that this process may use.
  size_t max_incomplete_bytes = 0;
  // Limits the connections over gRPC that are open at once; further clients are disconnected, and a warning
  // is logged. 0: 4,096. In any case at most 3/4 of the descriptors that this process may open.
  size_t max_connections = 0;
  // Limits the connections through shared memory. Further clients use gRPC.
  size_t max_shared_memory_connections = 512;
  // Decides which callers are served. nullptr: all are. Health checking and reflection are always served.
  std::shared_ptr<EpochGate> gate = nullptr;
  // What gRPC health checking reports for the whole server, "", from the first call on.
  bool serving = true;
  // Secures TCP connections (rpc/security/transport_security.h). nullptr: the key of this process. Clients
  // must have the same one.
  std::shared_ptr<const JobKey> key = nullptr;
  // Serves gRPC's reflection, which describes every method and message to any client that asks.
  bool reflection = false;
};

// A running server. Thread-safe. The destructor calls Shutdown with a grace period of 5 seconds.
class Server {
 public:
  // Binds the address and starts serving. RPC threads call the handlers in `services` until Shutdown returns,
  // so everything they capture must live longer. Errors: InvalidArgument (malformed address, unknown
  // transport, shared_memory_bytes out of range), Unavailable (cannot bind: the message names the address
  // and, if it is in use, what to do), those of ProcessKey.
  static absl::StatusOr<std::unique_ptr<Server>> Start(const ServerOptions& options,
                                                       std::vector<Service> services);

  virtual ~Server() = default;
  // Returns the bound port, 0 for a unix socket.
  virtual int port() const = 0;
  // Sets what gRPC health checking reports for `service`, or for the whole server if `service` is "". Until
  // then it reports SERVING, or ServerOptions::serving for "". No effect after Shutdown has begun.
  virtual void SetServing(const std::string& service, bool serving) = 0;
  // Stops the server: takes no new calls (health checking reports NOT_SERVING), lets running calls finish for
  // `grace`, then cancels the rest. Blocks until no handler runs any more. A handler may still call Finish
  // for a deferred call that was cancelled; that has no effect. Idempotent. Must not be called from a handler
  // or a channel's `done`, since it waits for them; the same holds for the destructor.
  virtual void Shutdown(absl::Duration grace) = 0;
};

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_SERVER_H_
