// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/run_program.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/ipc/descriptor.h"

extern char** environ;

namespace tandem::launcher {

absl::StatusOr<std::string> RunProgram(const std::vector<std::string>& command, absl::Duration timeout,
                                       size_t max_output) {
  const absl::Time deadline = MonotonicNow() + timeout;
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make a pipe: ", std::strerror(errno)));
  }
  const ipc::Descriptor read_end(fds[0]);
  ipc::Descriptor write_end(fds[1]);
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
  ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 2);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  write_end.Reset();
  if (error != 0) return absl::UnavailableError(std::strerror(error));

  // The end of its output counts as the end of the program.
  std::string output;
  bool ended = false;
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(deadline - MonotonicNow());
    pollfd poll{read_end.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&poll, 1, static_cast<int>(std::min<int64_t>(left, 1000))) < 0) break;
    if (poll.revents == 0) continue;
    char buffer[4096];
    const ssize_t got = ::read(read_end.get(), buffer, sizeof(buffer));
    if (got <= 0) {
      ended = true;
      break;
    }
    output.append(buffer, std::min(static_cast<size_t>(got), max_output - output.size()));
  }
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!ended) {
    return absl::DeadlineExceededError(
        absl::StrCat("it had not ended after ", absl::FormatDuration(timeout)));
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::UnavailableError(
        WIFEXITED(status) ? absl::StrCat("it ended with exit code ", WEXITSTATUS(status), ": ", output)
                          : absl::StrCat("it was killed by signal ", WTERMSIG(status)));
  }
  return output;
}

}  // namespace tandem::launcher
