// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_GRPC_SERVER_REQUEST_MEMORY_H_
#define TANDEM_RPC_GRPC_SERVER_REQUEST_MEMORY_H_

// Counts the requests that a gRPC server has in memory, for each connection and for the whole server.

#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc {

// Largest headers of a call; gRPC refuses calls with larger ones.
inline constexpr size_t kMaxHeaderBytes = 8192;

// The requests of one connection. Thread-safe.
class ConnectionMemory {
 public:
  // The limits of a server in bytes, those of unfinished requests and that of one request, and what all its
  // connections hold.
  struct Server {
    const size_t per_connection;
    const size_t in_all;
    const size_t one;
    std::atomic<size_t> held{0};
  };
  explicit ConnectionMemory(std::shared_ptr<Server> server) : server_(std::move(server)) {}

  // Returns OK if a request of `bytes` may begin. ResourceExhausted, which names the limit, if the connection
  // or the server has too many bytes of unfinished requests, or if the request is too large. The only request
  // of a connection, or of the server, exceeds the limits of unfinished requests without an error.
  absl::Status Admit(size_t bytes) const;
  // Counts `bytes` of a request that has begun, until Release.
  void Hold(size_t bytes);
  void Release(size_t bytes);

  // Notes that a message of `bytes`, or its refusal, was handled, so that they are no part of an incomplete
  // message any more (incoming_watch.h).
  void NoteHandled(size_t bytes);
  // Notes that a response was sent: the client acknowledges it with a few bytes that are no message.
  void NoteSent();
  // Returns how many bytes the connection has received if it had no incomplete message, rounded up for the
  // headers of HTTP/2 and TLS.
  int64_t handled() const { return handled_.load(std::memory_order_relaxed); }

 private:
  const std::shared_ptr<Server> server_;
  std::atomic<size_t> held_{0};
  std::atomic<int64_t> handled_{0};
};

// The limits of a server, and its connections. Thread-safe.
class RequestMemory {
 public:
  // Limits the bytes of unfinished requests, and those of `one` request.
  RequestMemory(size_t per_connection, size_t in_all, size_t one)
      : server_(
            new ConnectionMemory::Server{.per_connection = per_connection, .in_all = in_all, .one = one}) {}

  // Returns the account of the connection of `peer`, as ServerContext::peer() returns it. All calls of a TCP
  // connection share one. gRPC does not tell unix sockets apart, so each call gets an account of its own.
  std::shared_ptr<ConnectionMemory> Of(const std::string& peer) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the account of the connection of `socket`; nullptr if it is no connected TCP socket.
  std::shared_ptr<ConnectionMemory> OfSocket(int socket);

 private:
  std::shared_ptr<ConnectionMemory> Find(const std::string& key) ABSL_LOCKS_EXCLUDED(mutex_);

  const std::shared_ptr<ConnectionMemory::Server> server_;
  absl::Mutex mutex_;
  // By address and port. Those that have expired are erased when there are many.
  absl::flat_hash_map<std::string, std::weak_ptr<ConnectionMemory>> connections_ ABSL_GUARDED_BY(mutex_);
  size_t erase_at_ ABSL_GUARDED_BY(mutex_) = 64;
};

// Returns the form of a TCP peer's address that both ServerContext::peer() and a socket have: 16 bytes of
// address, IPv4 mapped, and 2 of port. "" for anything else.
std::string KeyOfPeer(absl::string_view peer);
std::string KeyOfAddress(const sockaddr_storage& address);

}  // namespace tandem::rpc

#endif  // TANDEM_RPC_GRPC_SERVER_REQUEST_MEMORY_H_
