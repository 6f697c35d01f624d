// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_PROCESS_SIGNAL_PIPE_H_
#define TANDEM_BASE_PROCESS_SIGNAL_PIPE_H_

// Makes signals available through a descriptor that can be polled.
//
// It is a pipe that a signal handler writes to. A signalfd would require the signals to be blocked in every
// thread, but libraries (OpenBLAS) start threads before main().

#include <sys/types.h>

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/ipc/descriptor.h"

namespace tandem {

// A signal that the process has got. A plain value.
struct ReceivedSignal {
  int number = 0;
  pid_t sender = 0;  // the process that has sent it; 0: the kernel, or a process of another pid namespace
};

// Handles some signals of the process and queues their numbers in a pipe. At most one exists at a time,
// because a process has one handler for each signal. Interrupted system calls are restarted (SA_RESTART),
// except those that never are, such as poll. Child processes do not inherit the pipe across exec. For use by
// one thread.
class SignalPipe {
 public:
  // Starts to handle `signals`, whose numbers must be in [1, 63]. A signal that the process was started to
  // ignore (nohup, a shell's background job) stays ignored. Returns FailedPrecondition if a SignalPipe
  // exists already, or the system's error if there are no descriptors left; then no handler has changed.
  static absl::StatusOr<std::unique_ptr<SignalPipe>> Install(const std::vector<int>& signals);
  // Restores the default handling (SIG_DFL) of the signals, not the handlers from before Install.
  ~SignalPipe();

  // A descriptor that is readable while there is a signal for Next. The object owns it.
  int fd() const { return read_.get(); }
  // Returns the next signal, in the order in which they were handled, or nullopt if there is none. Never
  // blocks. A signal that arrives several times may be returned as often. Signals are dropped only if 8192 of
  // them (the pipe's size) are waiting.
  std::optional<ReceivedSignal> Next();

 private:
  SignalPipe(ipc::Descriptor read, ipc::Descriptor write, const std::vector<int>& signals);

  const ipc::Descriptor read_, write_;
  unsigned long long handled_ = 0;  // bit s: signal s
};

}  // namespace tandem

#endif  // TANDEM_BASE_PROCESS_SIGNAL_PIPE_H_
