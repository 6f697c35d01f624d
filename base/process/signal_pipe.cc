// SPDX-License-Identifier: Apache-2.0
#include "base/process/signal_pipe.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tandem {
namespace {

// The pipe's write end. A signal handler can find it only in a global variable.
std::atomic<int> handler_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int signal, siginfo_t* info, void*) {
  const int saved = errno;
  // A positive code is the kernel's; si_pid then means something else.
  const ReceivedSignal received{.number = signal, .sender = info->si_code <= 0 ? info->si_pid : 0};
  // The pipe takes it as a whole, because it is smaller than PIPE_BUF. If the pipe is full, it already holds
  // more signals than the reader needs.
  [[maybe_unused]] const ssize_t ignored = ::write(handler_fd.load(), &received, sizeof(received));
  errno = saved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalPipe>> SignalPipe::Install(const std::vector<int>& signals) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  ipc::Descriptor read(ends[0]), write(ends[1]);
  int none = -1;
  if (!handler_fd.compare_exchange_strong(none, write.get())) {
    return absl::FailedPreconditionError("the process listens to its signals already");
  }
  return std::unique_ptr<SignalPipe>(new SignalPipe(std::move(read), std::move(write), signals));
}

SignalPipe::SignalPipe(ipc::Descriptor read, ipc::Descriptor write, const std::vector<int>& signals)
    : read_(std::move(read)), write_(std::move(write)) {
  struct sigaction action = {};
  action.sa_sigaction = OnSignal;
  action.sa_flags = SA_RESTART | SA_SIGINFO;
  for (int signal : signals) {
    struct sigaction before = {};
    if (::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    ::sigaction(signal, &action, nullptr);
    handled_ |= 1ull << signal;
  }
}

SignalPipe::~SignalPipe() {
  for (int signal = 1; signal < 64; ++signal) {
    if ((handled_ >> signal & 1) != 0) ::signal(signal, SIG_DFL);
  }
  handler_fd.store(-1);
}

std::optional<ReceivedSignal> SignalPipe::Next() {
  ReceivedSignal received;
  ssize_t size;
  do {
    size = ::read(read_.get(), &received, sizeof(received));
  } while (size < 0 && errno == EINTR);
  if (size != sizeof(received)) return std::nullopt;
  return received;
}

}  // namespace tandem
