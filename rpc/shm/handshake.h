// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_RPC_SHM_HANDSHAKE_H_
#define TANDEM_RPC_SHM_HANDSHAKE_H_

// Establishes connections. The server listens on a unix socket with a random abstract name. It tells this
// name and a secret to clients of its host that ask over gRPC (proto/tandem/v1/shared_memory.proto). A client
// connects to the socket, sends the secret and receives the descriptor of memory created for it. The socket
// stays open: each side wakes the other through it, and its end reports that the peer has ended.

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

namespace tandem::rpc::shm {

// Connects to a server. `caller` is Caller::ToBytes, at most kMaxCallerBytes. Blocks until the server has
// responded, at most until `deadline`. Errors:
//
// - FailedPrecondition: the socket cannot be reached from here, the kernel refuses the memory, or the server
//   runs another version
// - DeadlineExceeded
// - Unavailable: the server closed the connection
absl::StatusOr<std::shared_ptr<Link>> Dial(const std::string& socket, const std::string& secret,
                                           absl::Time deadline, size_t max_message_bytes,
                                           const std::string& caller = "");

// Receives each new connection and the identity of its client.
using TakeLink = absl::AnyInvocable<void(std::shared_ptr<Link>, Caller)>;

// The server's side of the handshake. One thread calls Wait and Close; any thread may call socket_name() and
// secret().
class Acceptor {
 public:
  // Starts listening. Every connection gets the layout `geometry`. FailedPrecondition if the kernel refuses
  // the socket or the memory. While `full` returns true, clients are disconnected instead of getting memory;
  // it is called in Wait. nullptr: never.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Open(const Geometry& geometry, size_t max_message_bytes,
                                                        std::function<bool()> full = nullptr);

  const std::string& socket_name() const { return socket_name_; }
  const std::string& secret() const { return secret_; }

  // Waits until a client arrives or the descriptor `stop` is readable; returns false in the latter case. New
  // connections are passed to `take`.
  bool Wait(int stop, TakeLink& take);
  // Stops listening: pending clients are disconnected, and Dial fails at once.
  void Close();

 private:
  // A client that has connected and not sent the secret yet.
  struct PendingClient {
    ipc::Descriptor socket;
    absl::Time deadline;  // the client is disconnected if it has not sent the secret by then
  };
  Acceptor(const Geometry& geometry, size_t max_message_bytes, std::function<bool()> full);
  std::shared_ptr<Link> CompleteHandshake(ipc::Descriptor socket, Caller* caller);

  const Geometry geometry_;
  const size_t max_message_bytes_;
  const std::function<bool()> full_;
  const std::string socket_name_;
  const std::string secret_;
  ipc::Descriptor listener_;
  std::vector<PendingClient> pending_clients_;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_HANDSHAKE_H_
