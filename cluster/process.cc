// SPDX-License-Identifier: Apache-2.0
#include "cluster/process.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/process/own_launcher.h"
#include "base/process/signal_pipe.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::cluster {
namespace {

// A process that ends waits so long for its last words to be written.
constexpr absl::Duration kWriteOutTime = absl::Seconds(2);
// Several processes may pass on what is one wish to stop.
constexpr absl::Duration kSignalsOfOneStop = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(ProcessOptions options) {
  if (options.signals.empty()) options.signals = {SIGTERM, SIGINT};
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<SignalPipe> signals, SignalPipe::Install(options.signals));
  const int stop = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (stop < 0) return absl::ErrnoToStatus(errno, "cannot make an event descriptor");
  return std::unique_ptr<Process>(new Process(std::move(options), std::move(signals), stop));
}

Process::Process(ProcessOptions options, std::unique_ptr<SignalPipe> signals, int stop)
    : options_(std::move(options)),
      launcher_(OwnLauncher()),
      signals_(std::move(signals)),
      stop_(stop),
      thread_([this] { Run(); }) {}

Process::~Process() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t ignored = ::write(stop_, &one, sizeof(one));
  thread_.join();
  ::close(stop_);
}

void Process::Run() {
  pollfd fds[] = {{stop_, POLLIN, 0}, {signals_->fd(), POLLIN, 0}};
  while (true) {
    fds[0].revents = fds[1].revents = 0;
    if (::poll(fds, 2, -1) < 0 && errno == EINTR) continue;
    if (fds[0].revents != 0) return;
    while (const std::optional<ReceivedSignal> signal = signals_->Next()) {
      if (options_.only_launcher && launcher_ != 0 && signal->sender != launcher_) {
        LogWarning(
            absl::StrCat(SignalName(signal->number), " of process ", signal->sender,
                         " is ignored: the workers may still need this server; to stop the job, signal "
                         "its launcher, process ",
                         launcher_));
        continue;
      }
      absl::MutexLock lock(&mutex_);
      if (handler_ == nullptr) {
        const std::string wait = waits_.Longest();
        Exit(options_.exit_code,
             absl::StrCat("stopped by ", SignalName(signal->number),
                          wait.empty() ? " before it had begun" : "; it has waited for ", wait));
      }
      handler_(signal->number);
    }
  }
}

void Process::OnSignal(std::function<void(int)> handler) {
  absl::MutexLock lock(&mutex_);
  handler_ = std::move(handler);
}

void Process::StopOnSignals(std::atomic<bool>* stop, std::string hint) {
  OnSignal([stop, hint = std::move(hint), launched = launched(),
            first = absl::InfiniteFuture()](int signal) mutable {
    const absl::Time now = MonotonicNow();
    const bool interrupt = signal == SIGINT;
    if (first == absl::InfiniteFuture()) {
      first = now;
      *stop = true;
      if (interrupt && !launched && !hint.empty()) LogInfo(hint);
      return;
    }
    const bool soon = now - first < kSignalsOfOneStop;
    if (launched ? !interrupt || soon : !interrupt && soon) return;
    ::signal(signal, SIG_DFL);
    ::raise(signal);
  });
}

int Process::AwaitSignal() {
  absl::Mutex mutex;
  int received = 0;
  OnSignal([&](int signal) {
    absl::MutexLock lock(&mutex);
    received = signal;
  });
  {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(
        +[](int* signal) { return *signal != 0; }, &received));
  }
  OnSignal([](int) {});
  return received;
}

void Process::Exit(int code, absl::string_view reason) {
  // A thread that hangs may hold the lock of a stream, and a pipe may be full.
  const auto written = std::make_shared<TimedNotification>();
  std::thread([written, code, text = std::string(reason)] {
    if (!text.empty()) Log(code == 0 ? LogLevel::kInfo : LogLevel::kError, text);
    std::fflush(nullptr);
    written->Notify();
  }).detach();
  (void)written->WaitFor(kWriteOutTime);
  std::_Exit(code);
}

}  // namespace tandem::cluster
