// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_RPC_REMOTE_PROCESS_WORKER_PROCESS_H_
#define TANDEM_TESTS_RPC_REMOTE_PROCESS_WORKER_PROCESS_H_

// Workers in processes of their own, the store through which they find each other, and the RPC agent of the
// test.

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "cluster/rendezvous/store_directory.h"
#include "cluster/store/store_server.h"
#include "tests/rpc/remote/process/worker_functions.h"

namespace tandem::rpc::remote::testing {

class WorkerProcesses {
 public:
  // Starts worker/0, worker/1, ... and waits until they have registered.
  explicit WorkerProcesses(int workers);
  ~WorkerProcesses();

  RpcAgent& agent() { return *agent_; }
  // "worker/3"
  static std::string NameOf(int worker);
  void Signal(int worker, int signal);
  // Sends SIGKILL and waits until the process has ended.
  void Kill(int worker);

 private:
  std::unique_ptr<cluster::StoreServer> server_;
  std::unique_ptr<cluster::Store> store_;
  std::unique_ptr<cluster::StoreDirectory> directory_;
  std::unique_ptr<RpcAgent> agent_;
  std::vector<pid_t> pids_;  // 0: ended
};

}  // namespace tandem::rpc::remote::testing

#endif  // TANDEM_TESTS_RPC_REMOTE_PROCESS_WORKER_PROCESS_H_
