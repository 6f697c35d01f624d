#ifndef TANDEM_BASE_IPC_UNIX_SOCKET_H_
#define TANDEM_BASE_IPC_UNIX_SOCKET_H_

// Unix sockets of abstract names, over which processes of one host pass each other descriptors. Such a name
// is in no file system and vanishes with its process, however that ends; so does a connection, whose end is
// read at once: it tells of a death.

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ipc/descriptor.h"

namespace tandem::ipc {

// A non-blocking SOCK_SEQPACKET socket that listens on the abstract `name` (at most 106 bytes).
// FailedPrecondition naming the error.
absl::StatusOr<Descriptor> ListenAbstract(const std::string& name, int backlog);
// A connection to it. FailedPrecondition: nobody listens there, or in another network namespace.
absl::StatusOr<Descriptor> ConnectAbstract(const std::string& name);

// Sends one packet, with `descriptor` if it is not negative. False when it does not go at once.
bool SendPacket(int socket, const void* data, size_t size, int descriptor = -1);
// Receives one packet of exactly `size` bytes that is there already; false at the end of the connection or
// for any other packet. *descriptor is set if one came, and closed if nobody wants it.
bool ReceivePacket(int socket, void* data, size_t size, Descriptor* descriptor = nullptr);

// Waits until there is something to receive, or the end; false at `deadline`.
bool AwaitReadable(int socket, absl::Time deadline);

// What is left until `deadline` as poll() takes it, rounded up, in [0, at_most].
int MillisecondsUntil(absl::Time deadline, int at_most);

// 128 random bits in hexadecimal: names and secrets that nobody guesses.
std::string RandomToken();

}  // namespace tandem::ipc

#endif  // TANDEM_BASE_IPC_UNIX_SOCKET_H_
