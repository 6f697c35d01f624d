// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/processes/tandem_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"

extern char** environ;

namespace tandem::testing {

TandemProcess::TandemProcess(const std::vector<std::string>& args,
                             const std::map<std::string, std::string>& variables,
                             const std::string& directory) {
  std::map<std::string, std::string> all = variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(*entry, absl::MaxSplits('=', 1));
    all.insert(pair);
  }
  std::vector<std::string> environment, words = {"tandem"};
  for (const auto& [name, value] : all) environment.push_back(absl::StrCat(name, "=", value));
  words.insert(words.end(), args.begin(), args.end());
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : environment) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);

  int out[2], err[2];
  TANDEM_CHECK(::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(err, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  ::posix_spawn_file_actions_adddup2(&actions, err[1], 2);
  if (!directory.empty()) ::posix_spawn_file_actions_addchdir_np(&actions, directory.c_str());
  // A test in the background of a shell ignores some signals, which tandem would do too.
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t signals;
  ::sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
  ::posix_spawnattr_setsigdefault(&attributes, &signals);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  TANDEM_CHECK(::posix_spawn(&pid_, TANDEM_BINARY, &actions, &attributes, argv.data(), envp.data()) == 0);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&actions);
  ::close(out[1]);
  ::close(err[1]);
  fds_[0] = out[0];
  fds_[1] = err[0];
}

TandemProcess::~TandemProcess() {
  if (!ended_) {
    Signal(SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (int fd : fds_) {
    if (fd >= 0) ::close(fd);
  }
}

void TandemProcess::Signal(int signal) { ::kill(pid_, signal); }

bool TandemProcess::ReadSome(absl::Time deadline) {
  if (fds_[0] < 0 && fds_[1] < 0) return false;
  pollfd ready[2] = {{fds_[0], POLLIN, 0}, {fds_[1], POLLIN, 0}};
  if (::poll(ready, 2, MillisUntil(deadline)) <= 0) return absl::Now() < deadline;
  for (int i = 0; i < 2; ++i) {
    if (ready[i].revents == 0) continue;
    char buffer[65536];
    const ssize_t size = ::read(fds_[i], buffer, sizeof(buffer));
    if (size > 0) {
      text_[i].append(buffer, static_cast<size_t>(size));
    } else {
      ::close(fds_[i]);
      fds_[i] = -1;
    }
  }
  return true;
}

bool TandemProcess::WaitForOutput(absl::string_view text) {
  const absl::Time deadline = absl::Now() + kTestTimeout;
  do {
    if (absl::StrContains(text_[0], text) || absl::StrContains(text_[1], text)) return true;
  } while (ReadSome(deadline));
  return false;
}

bool TandemProcess::WaitForLine(const std::function<bool(const std::string& line)>& wanted) {
  const absl::Time deadline = absl::Now() + kTestTimeout;
  do {
    for (size_t end; (end = text_[0].find('\n', lines_seen_)) != std::string::npos;) {
      const std::string line = text_[0].substr(lines_seen_, end - lines_seen_);
      lines_seen_ = end + 1;
      if (wanted(line)) return true;
    }
  } while (ReadSome(deadline));
  return false;
}

int TandemProcess::Wait() {
  const absl::Time deadline = absl::Now() + kTestTimeout;
  while (ReadSome(deadline)) {
  }
  if (ended_) return exit_code_;
  if (!AwaitProcessEnd(pid_, deadline)) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  ended_ = true;
  exit_code_ = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return exit_code_;
}

Finished RunTandem(const std::vector<std::string>& args, const std::map<std::string, std::string>& variables,
                   const std::string& directory) {
  TandemProcess process(args, variables, directory);
  const int exit_code = process.Wait();
  return {exit_code, process.out(), process.err()};
}

}  // namespace tandem::testing
