// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_COLLECTIVES_DIAGNOSTICS_SIGNAL_DUMP_H_
#define TANDEM_COLLECTIVES_DIAGNOSTICS_SIGNAL_DUMP_H_

// SignalDump dumps a flight recorder when a signal arrives: `kill -USR2 PID` shows what a hanging process is
// doing.

#include <csignal>
#include <memory>
#include <thread>

#include "absl/status/statusor.h"
#include "collectives/diagnostics/flight_recorder.h"

namespace tandem::collectives {

// Handles one signal while it exists. A program installs it explicitly: no library installs signal handlers
// by itself. The handler only writes a byte into a pipe; a thread of this object makes the dump. The
// destructor restores the previous handler.
class SignalDump {
 public:
  // Installs the handler. Errors: FailedPrecondition if a SignalDump exists in this process already;
  // InvalidArgument if `signal` is no signal that can be caught; ResourceExhausted if there are no
  // descriptors left.
  static absl::StatusOr<std::unique_ptr<SignalDump>> Install(std::shared_ptr<FlightRecorder> recorder,
                                                             int signal = SIGUSR2);
  ~SignalDump();
  SignalDump(const SignalDump&) = delete;
  SignalDump& operator=(const SignalDump&) = delete;

 private:
  SignalDump(std::shared_ptr<FlightRecorder> recorder, int signal, int read_fd, int write_fd);
  void Serve();

  const std::shared_ptr<FlightRecorder> recorder_;
  const int signal_;
  const int read_fd_, write_fd_;
  struct sigaction before_ = {};
  std::thread thread_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_DIAGNOSTICS_SIGNAL_DUMP_H_
