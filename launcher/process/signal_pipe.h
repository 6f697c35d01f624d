#ifndef TANDEM_LAUNCHER_PROCESS_SIGNAL_PIPE_H_
#define TANDEM_LAUNCHER_PROCESS_SIGNAL_PIPE_H_

// Signals as something to poll for.
//
// Not a signalfd: that needs the signals blocked in every thread, and libraries (OpenBLAS) start threads
// before main().

#include <initializer_list>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// At most one exists at a time, since a process has one handler for each signal. Lives until the process ends
// or it is destroyed, which restores the default handling.
class SignalPipe {
 public:
  // FailedPrecondition when there is one already.
  static absl::StatusOr<std::unique_ptr<SignalPipe>> Install(std::initializer_list<int> signals);
  ~SignalPipe();

  // Readable when a signal has come.
  int fd() const { return read_.get(); }
  // The next signal that has come; none when there is no more. Does not block.
  std::optional<int> Next();

 private:
  SignalPipe(ipc::Descriptor read, ipc::Descriptor write, std::initializer_list<int> signals);

  const ipc::Descriptor read_, write_;
  unsigned long long handled_ = 0;  // bit s: signal s
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_SIGNAL_PIPE_H_
