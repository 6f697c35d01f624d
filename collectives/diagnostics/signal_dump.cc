// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/signal_dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"

namespace tandem::collectives {
namespace {

// State for the handler, which belongs to the process and not to an object.
constexpr int kNone = -1, kTaken = -2;
std::atomic<int> handler_fd{kNone};
std::atomic<int> handlers_running{0};
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int) {
  const int saved = errno;
  handlers_running.fetch_add(1);
  const int fd = handler_fd.load();
  if (fd >= 0) {
    const char byte = 's';
    (void)!::write(fd, &byte, 1);  // a full pipe: a dump is due anyway
  }
  handlers_running.fetch_sub(1);
  errno = saved;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SignalDump>> SignalDump::Install(std::shared_ptr<FlightRecorder> recorder,
                                                                int signal) {
  int none = kNone;
  if (!handler_fd.compare_exchange_strong(none, kTaken)) {
    return absl::FailedPreconditionError("this process has a SignalDump already");
  }
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    handler_fd = kNone;
    return absl::ResourceExhaustedError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  ::fcntl(fds[1], F_SETFL, O_NONBLOCK);
  auto dump = absl::WrapUnique(new SignalDump(std::move(recorder), signal, fds[0], fds[1]));
  handler_fd = fds[1];
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  ::sigemptyset(&action.sa_mask);
  if (::sigaction(signal, &action, &dump->before_) != 0) {
    // The destructor would restore what was never replaced; that fails in the same way.
    return absl::InvalidArgumentError(
        absl::StrCat("signal ", signal, " cannot be caught: ", std::strerror(errno)));
  }
  return dump;
}

SignalDump::SignalDump(std::shared_ptr<FlightRecorder> recorder, int signal, int read_fd, int write_fd)
    : recorder_(std::move(recorder)), signal_(signal), read_fd_(read_fd), write_fd_(write_fd) {
  thread_ = std::thread([this] { Serve(); });
}

SignalDump::~SignalDump() {
  ::sigaction(signal_, &before_, nullptr);
  handler_fd = kTaken;
  while (handlers_running.load() != 0) std::this_thread::yield();  // a few instructions of another thread
  ::close(write_fd_);  // ends the thread, after the dumps that were requested
  thread_.join();
  ::close(read_fd_);
  handler_fd = kNone;
}

void SignalDump::Serve() {
  char bytes[64];  // signals that came while one dump was made request one more, not many
  for (;;) {
    const ssize_t got = ::read(read_fd_, bytes, sizeof(bytes));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    recorder_->Dump(absl::StrCat("signal ", signal_)).IgnoreError();  // logged by the recorder
  }
}

}  // namespace tandem::collectives
