// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/port_reservation.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::launcher {

absl::StatusOr<std::unique_ptr<PortReservation>> PortReservation::Keep(int port) {
  ipc::Descriptor fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::ErrnoToStatus(errno, "cannot open a socket");
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof(address);
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) != 0) {
    if (errno == EADDRINUSE) {
      return absl::UnavailableError(absl::StrCat(
          "port ", port,
          ", which the program is to have as MASTER_PORT, is in use: stop the process that holds it "
          "(ss -ltnp), choose another --master-port, or leave the flag out: the kernel then picks a free "
          "one"));
    }
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot keep port ", port, " for the program"));
  }
  if (::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return absl::ErrnoToStatus(errno, "cannot read a socket's port");
  }
  return std::unique_ptr<PortReservation>(new PortReservation(std::move(fd), ntohs(address.sin_port)));
}

}  // namespace tandem::launcher
