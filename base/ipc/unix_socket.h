// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_IPC_UNIX_SOCKET_H_
#define TANDEM_BASE_IPC_UNIX_SOCKET_H_

// Unix sockets with abstract names, through which processes of one host pass descriptors to each other. Such
// a name is not in a file system and disappears with its process, in whatever way that ends. A connection
// also ends with its process, and the peer can read that at once: this is how a process detects that its peer
// has died.

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"

namespace tandem::ipc {

// Returns a non-blocking SOCK_SEQPACKET socket that listens on the abstract `name` (at most 106 bytes).
// FailedPrecondition names the error.
absl::StatusOr<Descriptor> ListenAbstract(const std::string& name, int backlog);
// Returns a connection to such a socket. FailedPrecondition if no process of this network namespace listens
// there, or one of another user (CheckSameUser).
absl::StatusOr<Descriptor> ConnectAbstract(const std::string& name);
// Accepts a connection to a socket of ListenAbstract, without blocking. Returns a non-blocking socket.
// Returns no descriptor, with the reason in errno, if there is none; EPERM: it came from another user and was
// closed.
Descriptor AcceptAbstract(int listener);
// Returns PermissionDenied, naming both, if the peer of the unix socket runs as another user than this
// process. Abstract names have no permissions, so any user of the host can connect.
absl::Status CheckSameUser(int socket);

// Sends one packet, with `descriptor` unless it is negative. Never blocks. Returns false if the packet cannot
// be sent at once.
bool SendPacket(int socket, const void* data, size_t size, int descriptor = -1);
// Receives one packet of exactly `size` bytes, which must already have arrived. Returns false at the end of
// the connection, and for any other packet. A received descriptor is stored in *descriptor, or closed if
// `descriptor` is nullptr.
bool ReceivePacket(int socket, void* data, size_t size, Descriptor* descriptor = nullptr);

// Returns a pidfd of the process that made the other end of a connection, which becomes readable when that
// process ends. The end of the connection does not always tell: a child that the process forked keeps it
// open. Returns no descriptor if the kernel has no pidfds, or if the process belongs to another pid
// namespace.
Descriptor OpenPeerProcess(int socket);

// Waits until there is something to receive, or the connection has ended. Returns false at `deadline`.
bool AwaitReadable(int socket, absl::Time deadline);

// Returns the time until `deadline` in the form that poll() takes, rounded up and limited to [0, at_most].
int MillisecondsUntil(absl::Time deadline, int at_most);

// Returns 128 random bits in hexadecimal, for names and secrets that cannot be guessed.
std::string RandomToken();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_UNIX_SOCKET_H_
