// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_HOST_PORT_RESERVATION_H_
#define TANDEM_LAUNCHER_HOST_PORT_RESERVATION_H_

// Reserves a TCP port for a program that the launcher will start.

#include <memory>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// Reserves a port until destroyed. The port is bound with SO_REUSEADDR and never listened on. So the kernel
// does not choose it for port 0 or for an outgoing connection, while a server that binds it by number with
// SO_REUSEADDR, as PyTorch's store and gRPC do, can listen at it. A server that binds it without SO_REUSEADDR
// is refused.
class PortReservation {
 public:
  // Reserves `port` on all interfaces; with 0 the kernel picks one. Returns Unavailable, with advice, if
  // another process uses the port.
  static absl::StatusOr<std::unique_ptr<PortReservation>> Keep(int port);

  int port() const { return port_; }

 private:
  PortReservation(ipc::Descriptor socket, int port) : socket_(std::move(socket)), port_(port) {}

  const ipc::Descriptor socket_;
  const int port_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_PORT_RESERVATION_H_
