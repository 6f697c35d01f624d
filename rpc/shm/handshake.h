#ifndef TANDEM_RPC_SHM_HANDSHAKE_H_
#define TANDEM_RPC_SHM_HANDSHAKE_H_

// How a connection comes about: the server listens on a unix socket of a random abstract name, which it
// tells, with a secret, to clients of its host that ask over gRPC (proto/tandem/v1/shared_memory.proto). A
// client connects there, shows the secret and is passed the descriptor of memory made for it. The socket
// stays open: it wakes sleepers, and its end tells of a death.

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

// The client's part. `caller`: Caller::ToBytes, at most kMaxCallerBytes. Blocks until the server has
// answered, at most until `deadline`. FailedPrecondition: the socket cannot be reached from here, the kernel
// refuses the memory, or another version runs there; DeadlineExceeded; Unavailable: the server closed the
// connection.
absl::StatusOr<std::shared_ptr<Link>> Dial(const std::string& socket, const std::string& secret,
                                           absl::Time deadline, size_t max_message_bytes,
                                           const std::string& caller = "");

// Whom the server has shared memory with, and what it says of itself.
using TakeLink = absl::AnyInvocable<void(std::shared_ptr<Link>, Caller)>;

// The server's part. Used by one thread, but for socket_name() and secret().
class Acceptor {
 public:
  // `geometry` is that of every connection. FailedPrecondition when the kernel refuses the socket or the
  // memory.
  static absl::StatusOr<std::unique_ptr<Acceptor>> Open(const Geometry& geometry, size_t max_message_bytes);

  const std::string& socket_name() const { return socket_name_; }
  const std::string& secret() const { return secret_; }

  // Waits until somebody comes or `stop`, a descriptor, is readable: false then. Connections that came about
  // go to `take`.
  bool Wait(int stop, TakeLink& take);
  // Nobody comes any more: who waits is shown out, and Dial fails at once.
  void Close();

 private:
  struct Guest {
    ipc::Descriptor socket;
    absl::Time deadline;  // shows the secret until then, or goes
  };
  Acceptor(const Geometry& geometry, size_t max_message_bytes);
  std::shared_ptr<Link> Welcome(ipc::Descriptor socket, Caller* caller);

  const Geometry geometry_;
  const size_t max_message_bytes_;
  const std::string socket_name_;
  const std::string secret_;
  ipc::Descriptor listener_;
  std::vector<Guest> guests_;
};

}  // namespace tandem::rpc::shm

#endif  // TANDEM_RPC_SHM_HANDSHAKE_H_
