// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_CHECKPOINT_KILLED_PROCESS_H_
#define TANDEM_TESTS_PS_CHECKPOINT_KILLED_PROCESS_H_

#include <signal.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <optional>

#include "absl/functional/function_ref.h"

namespace tandem::ps::testing {

// Runs `body` in a child process and kills it (SIGKILL) when it is about to make system call `n`, counted
// from
// 1. Returns whether it was killed; false: `body` returned first. nullopt: this process may not trace
// another. The caller must have one thread.
inline std::optional<bool> KilledAtSystemCall(int n, absl::FunctionRef<void()> body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0 || ::raise(SIGSTOP) != 0) ::_exit(1);
    body();
    ::_exit(0);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return std::nullopt;
  if (::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return std::nullopt;
  }
  bool enters = false;  // the child stops when it enters a call and when it leaves it
  for (int calls = 0;;) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    if (::waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) return false;
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    enters = !enters;
    if (!enters || ++calls < n) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return true;
  }
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_CHECKPOINT_KILLED_PROCESS_H_
