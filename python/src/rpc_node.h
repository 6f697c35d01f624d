// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PYTHON_SRC_RPC_NODE_H_
#define TANDEM_PYTHON_SRC_RPC_NODE_H_

// The RPC agent of a Python process, and how it finds the others. No function needs the GIL.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cluster/store/remote_store.h"
#include "python/src/job_member.h"
#include "rpc/caller.h"
#include "rpc/remote/directory.h"
#include "rpc/remote/rpc_agent.h"
#include "rpc/remote/untyped.h"

namespace tandem::python {

struct RpcNodeOptions {
  std::string name;
  // Either the address of a store, in which the workers register, or the addresses of all workers by name.
  std::string store;
  std::vector<std::pair<std::string, std::string>> peers;
  // The prefix of the store's keys.
  std::string prefix = "rpc";
  // "host:port"; empty: at the interface by which this machine reaches the store, at a port that the kernel
  // picks.
  std::string listen;
  std::string transport = "auto";
  int threads = 16;
  absl::Duration call_timeout = absl::Seconds(60);
  absl::Duration start_timeout = absl::Seconds(60);
  // If world_size > 0, Start waits until all ranks have registered, under whatever names.
  int rank = 0;
  int world_size = 0;
  std::vector<std::string> wait_for;
  // With a member's name the process takes part in the job that the environment describes: it joins it.
  rpc::Caller caller;
};

// An agent with what it needs. Destroyed in the reverse order, after the agent's calls have ended.
struct RpcNode {
  // Blocks until the other workers have registered, at most start_timeout. Errors: those of RpcAgent::Start,
  // and DeadlineExceeded with the ranks that have not registered.
  static absl::StatusOr<std::unique_ptr<RpcNode>> Start(RpcNodeOptions options,
                                                        std::unique_ptr<rpc::remote::UntypedFunctions> names,
                                                        rpc::remote::Functions functions);

  std::unique_ptr<rpc::remote::UntypedFunctions> names;
  std::shared_ptr<JobMember> job;  // nullptr: the agent takes part in no job of a launcher
  std::unique_ptr<cluster::RemoteStore> store;
  std::unique_ptr<rpc::remote::Directory> directory;
  std::unique_ptr<rpc::remote::RpcAgent> agent;
};

}  // namespace tandem::python

#endif  // TANDEM_PYTHON_SRC_RPC_NODE_H_
