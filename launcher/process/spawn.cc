// SPDX-License-Identifier: Apache-2.0
#include "launcher/process/spawn.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "launcher/process/process_reaper.h"

namespace tandem::launcher {
namespace {

struct Pipe {
  ipc::Descriptor read, write;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "cannot make a pipe");
  return Pipe{ipc::Descriptor(ends[0]), ipc::Descriptor(ends[1])};
}

std::vector<char*> Pointers(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

struct ChildPlan {
  const char* path;
  char* const* args;
  char* const* environment;
  int in, out, err, failed, guardian, terminal, inherited;
  pid_t parent;
  const cpu_set_t* cpus;  // nullptr: the caller's
};

// Runs between fork and exec. It may only make system calls, because another thread of the launcher may have
// held any lock at the fork.
[[noreturn]] void BecomeChild(const ChildPlan& plan) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != plan.parent) ::_exit(127);  // the launcher died before PR_SET_PDEATHSIG took effect
  // An error is ignored: if the processors are gone (a cgroup has changed), the program runs on others.
  if (plan.cpus != nullptr) ::sched_setaffinity(0, sizeof(*plan.cpus), plan.cpus);
  if (plan.guardian >= 0) ProcessReaper::Register(plan.guardian, ::getpid());
  if (plan.terminal >= 0) {
    ::signal(SIGTTOU, SIG_IGN);  // a background group may not change the foreground otherwise
    ::tcsetpgrp(plan.terminal, ::getpid());
    ::signal(SIGTTOU, SIG_DFL);
  }
  struct sigaction action = {}, before = {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) {
    // The program also ignores the signals that the launcher was told to ignore (nohup). The launcher ignores
    // SIGPIPE for itself only.
    const bool inherited = ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (!inherited || signal == SIGPIPE) ::sigaction(signal, &action, nullptr);
  }
  // Nobody would continue a program that Ctrl-Z has stopped: the shell waits for the launcher.
  if (plan.terminal >= 0) ::signal(SIGTSTP, SIG_IGN);
  if (plan.inherited >= 0) ::fcntl(plan.inherited, F_SETFD, 0);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(plan.in, 0) >= 0 && ::dup2(plan.out, 1) >= 0 && ::dup2(plan.err, 2) >= 0) {
    ::execve(plan.path, plan.args, plan.environment);
  }
  const int error = errno;
  [[maybe_unused]] const ssize_t ignored = ::write(plan.failed, &error, sizeof(error));
  ::_exit(127);
}

}  // namespace

absl::StatusOr<Spawned> Spawn(const SpawnOptions& options) {
  absl::StatusOr<Pipe> out = MakePipe();
  if (!out.ok()) return out.status();
  absl::StatusOr<Pipe> err = MakePipe();
  if (!err.ok()) return err.status();
  absl::StatusOr<Pipe> failed = MakePipe();
  if (!failed.ok()) return failed.status();
  const ipc::Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return absl::ErrnoToStatus(errno, "cannot open /dev/null");
  ::fcntl(out->read.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(err->read.get(), F_SETFL, O_NONBLOCK);

  const std::vector<char*> args = Pointers(options.args);
  const std::vector<char*> environment = Pointers(options.environment);
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (const int cpu : options.cpus) {
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &cpus);
  }
  const ChildPlan plan = {.path = options.path.c_str(),
                          .args = args.data(),
                          .environment = environment.data(),
                          .in = options.terminal >= 0 ? options.terminal : null.get(),
                          .out = out->write.get(),
                          .err = err->write.get(),
                          .failed = failed->write.get(),
                          .guardian = options.guardian_fd,
                          .terminal = options.terminal,
                          .inherited = options.inherited,
                          .parent = ::getpid(),
                          .cpus = options.cpus.empty() ? nullptr : &cpus};
#ifdef __SANITIZE_THREAD__
  // TSan's interceptors take locks in the child. Its fork handler, which _Fork would not run, makes that
  // safe.
  const pid_t pid = ::fork();
#else
  // _Fork, unlike fork, does not run the fork handlers of libraries, which would take locks.
  const pid_t pid = ::_Fork();
#endif
  if (pid < 0) return absl::ErrnoToStatus(errno, "cannot start a process");
  if (pid == 0) BecomeChild(plan);

  Spawned spawned;
  spawned.pid = pid;
  spawned.pidfd = ipc::Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  const int pidfd_error = errno;
  failed->write.Reset();
  int error = 0;
  ssize_t size;
  do {
    size = ::read(failed->read.get(), &error, sizeof(error));  // ends when exec closes the other end
  } while (size < 0 && errno == EINTR);
  if (size == sizeof(error) || !spawned.pidfd.valid()) {
    if (size != sizeof(error)) ::kill(pid, SIGKILL);
    while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) {
    }
    if (size == sizeof(error))
      return absl::ErrnoToStatus(error, absl::StrCat("cannot execute '", options.path, "'"));
    return absl::ErrnoToStatus(pidfd_error, "cannot watch a process");
  }
  spawned.out = std::move(out->read);
  spawned.err = std::move(err->read);
  return spawned;
}

void TakeTerminalBack(int terminal) {
  sigset_t output, before;
  ::sigemptyset(&output);
  ::sigaddset(&output, SIGTTOU);
  ::pthread_sigmask(SIG_BLOCK, &output, &before);
  ::tcsetpgrp(terminal, ::getpgrp());
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

absl::StatusOr<std::string> FindProgram(const std::string& program) {
  const auto is_file = [](const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
  };
  if (absl::StrContains(program, '/')) {
    if (!is_file(program)) return absl::NotFoundError(absl::StrCat("there is no program '", program, "'"));
    if (::access(program.c_str(), X_OK) == 0) return program;
    return absl::PermissionDeniedError(
        absl::StrCat("'", program, "' is not executable; run chmod +x on it?"));
  }
  const char* path = std::getenv("PATH");
  for (absl::string_view directory : absl::StrSplit(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    std::string candidate = absl::StrCat(directory.empty() ? "." : directory, "/", program);
    if (is_file(candidate) && ::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return absl::NotFoundError(
      absl::StrCat("there is no program '", program, "' in PATH",
                   is_file(program) ? absl::StrCat("; did you mean './", program, "'?") : ""));
}

}  // namespace tandem::launcher
