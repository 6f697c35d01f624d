#ifndef TANDEM_LAUNCHER_HOST_PORT_RESERVATION_H_
#define TANDEM_LAUNCHER_HOST_PORT_RESERVATION_H_

// A TCP port that the kernel gives to nobody else, though a program may bind it.

#include <memory>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// Keeps the port until destroyed. It is bound with SO_REUSEADDR and never listened on: the kernel hands it
// out neither for port 0 nor to connections, while a server that binds it by its number with SO_REUSEADDR, as
// PyTorch's store and gRPC do, can listen. One that binds without SO_REUSEADDR is refused.
class PortReservation {
 public:
  // `port` on all interfaces; 0 lets the kernel pick. Unavailable, saying what to do, when another process
  // has it.
  static absl::StatusOr<std::unique_ptr<PortReservation>> Keep(int port);

  int port() const { return port_; }

 private:
  PortReservation(ipc::Descriptor socket, int port) : socket_(std::move(socket)), port_(port) {}

  const ipc::Descriptor socket_;
  const int port_;
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_HOST_PORT_RESERVATION_H_
