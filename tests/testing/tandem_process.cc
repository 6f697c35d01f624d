#include "tests/testing/tandem_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status.h"

extern char** environ;

namespace tandem::testing {
namespace {

// glibc 2.36 declares its own without extern "C".
int OpenPidfd(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

int MillisUntil(absl::Time deadline) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()) + 1));
}

}  // namespace

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
  TANDEM_CHECK(::posix_spawn(&pid_, TANDEM_BINARY, &actions, nullptr, argv.data(), envp.data()) == 0);
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
  const absl::Time deadline = absl::Now() + kPatience;
  do {
    if (absl::StrContains(text_[0], text) || absl::StrContains(text_[1], text)) return true;
  } while (ReadSome(deadline));
  return false;
}

int TandemProcess::Wait() {
  const absl::Time deadline = absl::Now() + kPatience;
  while (ReadSome(deadline)) {
  }
  if (ended_) return exit_code_;
  const int pidfd = OpenPidfd(pid_);
  pollfd ready = {pidfd, POLLIN, 0};
  const bool over = ::poll(&ready, 1, MillisUntil(deadline)) == 1;
  ::close(pidfd);
  if (!over) return -1;
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

std::string ReadFile(const std::string& path) {
  std::string text;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return text;
  char buffer[16384];
  ssize_t size;
  // What lies in /proc may fail in the middle, when its process ends: then that was all.
  while ((size = ::read(fd, buffer, sizeof(buffer))) > 0) text.append(buffer, static_cast<size_t>(size));
  ::close(fd);
  return text;
}

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

bool IsAlive(pid_t pid) {
  const std::string stat = ReadFile(absl::StrCat("/proc/", pid, "/stat"));
  const size_t end = stat.rfind(')');  // of the name, which may hold anything
  return end != std::string::npos && end + 2 < stat.size() && stat[end + 2] != 'Z' && stat[end + 2] != 'X';
}

bool WaitUntilGone(pid_t pid) {
  const int pidfd = OpenPidfd(pid);
  if (pidfd < 0) return true;
  pollfd ready = {pidfd, POLLIN, 0};
  const bool gone = ::poll(&ready, 1, MillisUntil(absl::Now() + kPatience)) == 1;
  ::close(pidfd);
  return gone;
}

std::vector<pid_t> ProcessesMarked(absl::string_view marker) {
  std::vector<pid_t> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    pid_t pid;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid) || pid == ::getpid() || !IsAlive(pid))
      continue;
    if (absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/cmdline")), marker) ||
        absl::StrContains(ReadFile(absl::StrCat("/proc/", pid, "/environ")), marker)) {
      found.push_back(pid);
    }
  }
  return found;
}

bool WaitUntilNoneMarked(absl::string_view marker) {
  const absl::Time deadline = absl::Now() + kPatience;
  for (std::vector<pid_t> left = ProcessesMarked(marker); !left.empty(); left = ProcessesMarked(marker)) {
    if (absl::Now() > deadline || !WaitUntilGone(left.front())) return false;
  }
  return true;
}

}  // namespace tandem::testing
