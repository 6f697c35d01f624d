// SPDX-License-Identifier: Apache-2.0
#include "base/ipc/unix_socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::ipc {
namespace {

sockaddr_un AbstractAddress(const std::string& name, socklen_t* length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof(address.sun_path) - 1);
  // The leading zero byte makes the name abstract.
  std::memcpy(address.sun_path + 1, name.data(), size);
  *length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

}  // namespace

absl::StatusOr<Descriptor> ListenAbstract(const std::string& name, int backlog) {
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  socklen_t length;
  const sockaddr_un address = AbstractAddress(name, &length);
  if (listener.get() < 0 || bind(listener.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      listen(listener.get(), backlog) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("a unix socket for passing shared memory failed: ", std::strerror(errno)));
  }
  return listener;
}

absl::StatusOr<Descriptor> ConnectAbstract(const std::string& name) {
  Descriptor connection(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  socklen_t length;
  const sockaddr_un address = AbstractAddress(name, &length);
  if (connection.get() < 0 ||
      connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return absl::FailedPreconditionError(std::strerror(errno));
  }
  if (const absl::Status same = CheckSameUser(connection.get()); !same.ok()) {
    return absl::FailedPreconditionError(same.message());
  }
  return connection;
}

Descriptor AcceptAbstract(int listener) {
  Descriptor connection(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (connection.valid() && !CheckSameUser(connection.get()).ok()) {
    connection.Reset();
    errno = EPERM;
  }
  return connection;
}

absl::Status CheckSameUser(int socket) {
  ucred peer = {};
  socklen_t length = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return absl::ErrnoToStatus(errno, "the user of the process behind a unix socket is not known");
  }
  if (peer.uid == geteuid()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat("the process behind the unix socket runs as user ",
                                                  peer.uid, ", this one as user ", geteuid()));
}

bool SendPacket(int socket, const void* data, size_t size, int descriptor) {
  iovec part = {const_cast<void*>(data), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == static_cast<ssize_t>(size);
}

bool ReceivePacket(int socket, void* data, size_t size, Descriptor* descriptor) {
  iovec part = {data, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (received < 0) return false;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    int fd;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    Descriptor received_descriptor(fd);
    if (descriptor != nullptr) *descriptor = std::move(received_descriptor);
  }
  return static_cast<size_t>(received) == size && (message.msg_flags & MSG_TRUNC) == 0;
}

Descriptor OpenPeerProcess(int socket) {
#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77  // Linux 6.5
#endif
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return Descriptor(fd);
  ucred peer = {};
  size = sizeof(peer);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) return Descriptor();
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
}

bool AwaitReadable(int socket, absl::Time deadline) {
  pollfd polled = {socket, POLLIN, 0};
  do {
    if (poll(&polled, 1, MillisecondsUntil(deadline, 1000)) > 0) return true;
  } while (MonotonicNow() < deadline);
  return false;
}

int MillisecondsUntil(absl::Time deadline, int at_most) {
  const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow()) + 1;
  return static_cast<int>(std::clamp<int64_t>(left, 0, at_most));
}

std::string RandomToken() {
  char bytes[16];
  TANDEM_CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace tandem::ipc
