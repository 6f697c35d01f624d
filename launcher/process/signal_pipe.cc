// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/signal_pipe.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace tandem::launcher {
namespace {

// The pipe's write end. A signal handler can find it only in a global variable.
std::atomic<int> handler_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int signal) {
  const int saved = errno;
  const char byte = static_cast<char>(signal);
  // If the pipe is full, it already holds more signals than the reader needs.
  [[maybe_unused]] const ssize_t ignored = ::write(handler_fd.load(), &byte, 1);
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
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
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

std::optional<int> SignalPipe::Next() {
  char byte;
  ssize_t size;
  do {
    size = ::read(read_.get(), &byte, 1);
  } while (size < 0 && errno == EINTR);
  if (size != 1) return std::nullopt;
  return byte;
}

}  // namespace tandem::launcher
