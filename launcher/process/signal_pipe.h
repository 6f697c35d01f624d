#ifndef TANDEM_LAUNCHER_PROCESS_SIGNAL_PIPE_H_
#define TANDEM_LAUNCHER_PROCESS_SIGNAL_PIPE_H_

// Makes signals available through a descriptor that can be polled.
//
// It is a pipe that a signal handler writes to. A signalfd would require the signals to be blocked in every
// thread, but libraries (OpenBLAS) start threads before main().

#include <initializer_list>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem::launcher {

// At most one exists at a time, because a process has one handler for each signal. The destructor restores
// the default handling. For use by one thread.
class SignalPipe {
 public:
  // Starts to handle `signals`. Returns FailedPrecondition if a SignalPipe exists already.
  static absl::StatusOr<std::unique_ptr<SignalPipe>> Install(std::initializer_list<int> signals);
  ~SignalPipe();

  // A descriptor that is readable while there is a signal for Next.
  int fd() const { return read_.get(); }
  // Returns the next signal that arrived, or nullopt if there is no more. Never blocks.
  std::optional<int> Next();

 private:
  SignalPipe(ipc::Descriptor read, ipc::Descriptor write, std::initializer_list<int> signals);

  const ipc::Descriptor read_, write_;
  unsigned long long handled_ = 0;  // bit s: signal s
};

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PROCESS_SIGNAL_PIPE_H_
