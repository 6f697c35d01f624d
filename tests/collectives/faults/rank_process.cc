// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/faults/rank_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status.h"

extern char** environ;

namespace tandem::collectives {
namespace {

int MillisUntil(absl::Time deadline) {
  return static_cast<int>(std::max<int64_t>(0, absl::ToInt64Milliseconds(deadline - absl::Now()) + 1));
}

}  // namespace

RankProcess::RankProcess(const std::vector<std::string>& arguments, absl::string_view marker) {
  std::vector<std::string> words = {TANDEM_FAULT_RANK_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<std::string> variables = {absl::StrCat("TANDEM_TEST_MARKER=", marker)};
  for (char** one = environ; *one != nullptr; ++one) variables.push_back(*one);
  std::vector<char*> argv, envp;
  for (std::string& word : words) argv.push_back(word.data());
  for (std::string& variable : variables) envp.push_back(variable.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  int in[2], out[2];
  TANDEM_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], 0);
  posix_spawn_file_actions_adddup2(&actions, out[1], 1);
  posix_spawn_file_actions_adddup2(&actions, out[1], 2);
  TANDEM_CHECK(posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), envp.data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  in_ = in[1];
  out_ = out[0];
}

RankProcess::~RankProcess() {
  Kill();
  close(in_);
  close(out_);
}

bool RankProcess::ReadSome(absl::Time deadline) {
  pollfd ready = {out_, POLLIN, 0};
  if (poll(&ready, 1, MillisUntil(deadline)) <= 0) return false;
  char bytes[4096];
  const ssize_t n = read(out_, bytes, sizeof(bytes));
  if (n <= 0) return n < 0 && errno == EINTR;
  output_.append(bytes, static_cast<size_t>(n));
  return true;
}

bool RankProcess::WaitFor(absl::string_view word, absl::Time deadline, std::string* text) {
  while (true) {
    for (size_t end; (end = output_.find('\n', searched_)) != output_.npos; searched_ = end + 1) {
      absl::string_view line(output_.data() + searched_, end - searched_);
      if (!absl::ConsumePrefix(&line, absl::StrCat("@", word)) || (!line.empty() && line[0] != ' ')) continue;
      if (text != nullptr) *text = std::string(line.empty() ? line : line.substr(1));
      searched_ = end + 1;
      return true;
    }
    if (!ReadSome(deadline)) return false;
  }
}

void RankProcess::Continue() {
  (void)signal(SIGPIPE, SIG_IGN);  // it may be dead: then that is what the test will see
  if (write(in_, "\n", 1) < 0) return;
}

void RankProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

bool RankProcess::WaitForEnd(absl::Time deadline) {
  if (pid_ <= 0) return true;
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  pollfd ended = {pidfd, POLLIN, 0};
  const bool gone = poll(&ended, 1, MillisUntil(deadline)) > 0;
  close(pidfd);
  if (!gone) return false;
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
  return true;
}

}  // namespace tandem::collectives
