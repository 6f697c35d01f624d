// SPDX-License-Identifier: Apache-2.0
#include "tests/rpc/remote/process/worker_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "cluster/join.h"
#include "cluster/store/remote_store.h"
#include "rpc/channel.h"

extern char** environ;

namespace tandem::rpc::remote::testing {

WorkerProcesses::WorkerProcesses(int workers) {
  auto server = cluster::StoreServer::Start("127.0.0.1:0");
  TANDEM_CHECK_MSG(server.ok(), server.status().ToString());
  server_ = *std::move(server);
  const std::string address = absl::StrCat("127.0.0.1:", server_->port());
  for (int worker = 0; worker < workers; ++worker) {
    std::string program = TANDEM_REMOTE_WORKER, name = NameOf(worker), store = address;
    char* const args[] = {program.data(), name.data(), store.data(), nullptr};
    pid_t pid = 0;
    TANDEM_CHECK(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, args, environ) == 0);
    pids_.push_back(pid);
  }
  auto channel = cluster::ConnectStore(address);
  TANDEM_CHECK(channel.ok());
  store_ = std::make_unique<cluster::RemoteStore>(*std::move(channel));
  auto directory = cluster::StoreDirectory::Open(store_.get(), {.lease = kTestLease});
  TANDEM_CHECK_MSG(directory.ok(), directory.status().ToString());
  directory_ = *std::move(directory);
  auto agent =
      RpcAgent::Start({.name = "test/0", .reference_lease = kTestLease}, directory_.get(), Functions());
  TANDEM_CHECK_MSG(agent.ok(), agent.status().ToString());
  agent_ = *std::move(agent);
  for (int worker = 0; worker < workers; ++worker) {
    const auto pid = agent_->RpcSync(NameOf(worker), kPid);
    TANDEM_CHECK_MSG(pid.ok() && *pid == pids_[worker], pid.status().ToString());
  }
}

WorkerProcesses::~WorkerProcesses() {
  agent_.reset();
  (void)store_->Set("done", "");
  for (size_t worker = 0; worker < pids_.size(); ++worker) Kill(static_cast<int>(worker));
}

std::string WorkerProcesses::NameOf(int worker) { return absl::StrCat("worker/", worker); }

void WorkerProcesses::Signal(int worker, int signal) {
  ::kill(pids_[worker], signal);
  // SIGSTOP takes effect with a delay: until then a thread of the process may still respond.
  if (signal == SIGSTOP) TANDEM_CHECK(::waitpid(pids_[worker], nullptr, WUNTRACED) == pids_[worker]);
}

void WorkerProcesses::Kill(int worker) {
  if (pids_[worker] == 0) return;
  ::kill(pids_[worker], SIGKILL);
  ::waitpid(pids_[worker], nullptr, 0);
  pids_[worker] = 0;
}

}  // namespace tandem::rpc::remote::testing
