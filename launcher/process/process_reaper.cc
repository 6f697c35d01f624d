// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/process_reaper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>

#include "base/clock.h"
#include "launcher/process/descendants.h"

namespace tandem::launcher {
namespace {

enum class What : int32_t { kRegister, kForget, kKillAt };

// Smaller than PIPE_BUF, so that it is written and read as a whole.
struct Message {
  What what;
  int32_t group = 0;
  // A kKillAt has the deadline and the time at which it was sent, in nanoseconds of MonotonicNow().
  int64_t deadline = 0, sent = 0;
};

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

int64_t Nanos(absl::Time time) { return time == absl::InfiniteFuture() ? kNever : absl::ToUnixNanos(time); }

void Send(int fd, Message message) {
  ssize_t written;
  do {
    written = ::write(fd, &message, sizeof(message));
  } while (written < 0 && errno == EINTR);
}

[[noreturn]] void Guard(int in, const std::string& marks) {
  // A session of its own keeps Ctrl-C away. The launcher's descriptors are closed, because a reader of one of
  // them must see its end when the launcher ends.
  ::setsid();
  ::prctl(PR_SET_NAME, kReaperName);
  for (int fd = 0; fd < in; ++fd) ::close(fd);
  ::close_range(in + 1, ~0u, 0);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGPIPE}) ::signal(signal, SIG_IGN);
  std::set<pid_t> groups;
  int64_t deadline = kNever;
  // Not the marked processes at a deadline: a launcher that wakes may start new ones with these marks
  // meanwhile. The groups of those are registered after the deadline was put off.
  const auto kill_groups = [&groups] {
    for (pid_t group : groups) ::kill(-group, SIGKILL);
  };
  while (true) {
    pollfd readable = {.fd = in, .events = POLLIN, .revents = 0};
    const int64_t left = deadline == kNever ? 0 : std::max<int64_t>(0, deadline - Nanos(MonotonicNow()));
    const int millis = static_cast<int>(std::min<int64_t>(left / 1'000'000 + 1, 1'000'000));
    // Messages come first: this process may be late, and the launcher may have put the deadline off in time.
    const int ready = ::poll(&readable, 1, deadline == kNever ? -1 : millis);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      if (Nanos(MonotonicNow()) < deadline) continue;
      kill_groups();
      deadline = kNever;
      continue;
    }
    Message message;
    const ssize_t size = ::read(in, &message, sizeof(message));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(message)) break;
    switch (message.what) {
      case What::kRegister:
        groups.insert(message.group);
        break;
      case What::kForget:
        groups.erase(message.group);
        break;
      case What::kKillAt:
        if (message.sent > deadline) kill_groups();
        deadline = message.deadline;
        break;
    }
  }
  kill_groups();
  if (!groups.empty()) KillMarked(marks);
  ::_exit(0);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessReaper>> ProcessReaper::Start(const std::string& marks) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return absl::ErrnoToStatus(errno, "cannot make a pipe");
  }
  ipc::Descriptor in(ends[0]), out(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot start a process");
  if (pid == 0) Guard(in.get(), marks);
  return std::unique_ptr<ProcessReaper>(new ProcessReaper(std::move(out), pid));
}

ProcessReaper::~ProcessReaper() {
  pipe_.Reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessReaper::Register(int fd, pid_t group) { Send(fd, {.what = What::kRegister, .group = group}); }

void ProcessReaper::KillAt(absl::Time deadline) {
  Send(pipe_.get(), {.what = What::kKillAt, .deadline = Nanos(deadline), .sent = Nanos(MonotonicNow())});
}

void ProcessReaper::Forget(pid_t group) { Send(pipe_.get(), {.what = What::kForget, .group = group}); }

}  // namespace tandem::launcher
