// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/process_reaper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <set>

#include "launcher/process/descendants.h"

namespace tandem::launcher {
namespace {

// Smaller than PIPE_BUF, so that it is written and read as a whole.
struct Message {
  int32_t group;
  int32_t alive;  // 0: forget it
};

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
  while (true) {
    Message message;
    const ssize_t size = ::read(in, &message, sizeof(message));
    if (size < 0 && errno == EINTR) continue;
    if (size != sizeof(message)) break;
    if (message.alive != 0) {
      groups.insert(message.group);
    } else {
      groups.erase(message.group);
    }
  }
  for (pid_t group : groups) ::kill(-group, SIGKILL);
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

void ProcessReaper::Register(int fd, pid_t group) { Send(fd, {group, 1}); }

void ProcessReaper::Forget(pid_t group) { Send(pipe_.get(), {group, 0}); }

}  // namespace tandem::launcher
