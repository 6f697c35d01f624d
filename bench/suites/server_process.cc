// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/server_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/own_program.h"
#include "base/status.h"
#include "rpc/connect.h"

namespace tandem::bench {

absl::StatusOr<std::unique_ptr<ServerProcess>> ServerProcess::Start(const char* service) {
  TANDEM_ASSIGN_OR_RETURN(const std::string tandem, ProgramBeside("tandem"));
  int fds[2];
  if (::pipe2(fds, O_CLOEXEC) != 0) return absl::ErrnoToStatus(errno, "pipe2");
  std::unique_ptr<ServerProcess> process(new ServerProcess);
  process->pid_ = ::fork();
  if (process->pid_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::dup2(fds[1], STDOUT_FILENO);
    ::execl(tandem.c_str(), "tandem", service, "serve", "--listen", "127.0.0.1:0", nullptr);
    ::_exit(127);
  }
  ::close(fds[1]);
  char byte;
  while (::read(fds[0], &byte, 1) == 1 && byte != '\n') process->address_.push_back(byte);
  ::close(fds[0]);
  if (process->pid_ < 0 || process->address_.empty()) {
    return absl::InternalError(absl::StrCat("`", tandem, " ", service, " serve` did not start"));
  }
  return process;
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ServerProcess::Connect(bool shared_memory) const {
  return rpc::Connect(address_, {.transport = shared_memory ? "shm" : "grpc"});
}

ServerProcess::~ServerProcess() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

}  // namespace tandem::bench
