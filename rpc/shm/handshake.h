// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_HANDSHAKE_H_
#define TANDEM_RPC_SHM_HANDSHAKE_H_

// Establishes connections. The server listens on a unix socket with a random abstract name. It tells this
// name and a ticket (tickets.h) to clients of its host that ask over gRPC
// (proto/tandem/v1/shared_memory.proto). A client connects to the socket, sends the ticket and receives the
// descriptor of memory created for it. The connection has the identity of the caller that asked for the
// ticket. The socket stays open: each side wakes the other through it, and its end reports that the peer has
// ended.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"
#include "rpc/caller.h"
#include "rpc/shm/link.h"
#include "rpc/shm/tickets.h"

namespace tandem::rpc::shm {

// Connects to a server with a ticket of its offer. Blocks until the server has responded, at most until
// `deadline`. Errors:
//
// - FailedPrecondition: the socket cannot be reached from here, the kernel refuses the memory, or the server
//   runs another version
// - PermissionDenied: the server refuses the ticket; the message has its reason
// - ResourceExhausted: the server has no memory, or too many connections
// - DeadlineExceeded
// - Unavailable: the server closed the connection
absl::StatusOr<std::shared_ptr<Link>> Dial(const std::string& socket, const std::string& ticket,
                                           absl::Time deadline, size_t max_message_bytes);

// Receives each new connection and the identity of its client.
using TakeLink = absl::AnyInvocable<void(std::shared_ptr<Link>, Caller)>;

// The server's side of the handshake. One thread calls Wait and Close; any thread may call socket_name() and
// tickets().
class Acceptor {
 public:
  // Starts listening. Every connection gets the layout `geometry`. FailedPrecondition if the kernel refuses
  // the socket or the memory. While `full` returns true, clients are disconnected instead of getting memory;
  // it is called in Wait. nullptr: never.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Open(const Geometry& geometry, size_t max_message_bytes,
                                                        std::function<bool()> full = nullptr);

  const std::string& socket_name() const { return socket_name_; }
  Tickets& tickets() { return tickets_; }

  // Waits until a client arrives or the descriptor `stop` is readable; returns false in the latter case. New
  // connections are passed to `take`.
  bool Wait(int stop, TakeLink& take);
  // Stops listening: pending clients are disconnected, and Dial fails at once.
  void Close();

 private:
  // A client that has connected and not sent its ticket yet.
  struct PendingClient {
    ipc::Descriptor socket;
    absl::Time deadline;  // the client is disconnected if it has not sent its ticket by then
  };
  Acceptor(const Geometry& geometry, size_t max_message_bytes, std::function<bool()> full);
  // Returns the connection of the client that sends a valid ticket, and its identity. Otherwise tells the
  // client why, if it speaks this protocol, and returns the reason.
  absl::StatusOr<std::shared_ptr<Link>> CompleteHandshake(ipc::Descriptor socket, Caller* caller);

  const Geometry geometry_;
  const size_t max_message_bytes_;
  const std::function<bool()> full_;
  const std::string socket_name_;
  Tickets tickets_;
  ipc::Descriptor listener_;
  std::vector<PendingClient> pending_clients_;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_HANDSHAKE_H_
