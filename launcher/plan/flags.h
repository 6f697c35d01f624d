// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_FLAGS_H_
#define TANDEM_LAUNCHER_PLAN_FLAGS_H_

// The flags of `tandem run`: torchrun's, with torchrun's meaning, and Tandem's own. docs/launcher.md explains
// each.

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tandem::launcher {

class VariableOptions;

// The keys of --rdzv-conf, for help and errors.
inline constexpr char kRendezvousConfKeys[] =
    "join_timeout (or timeout), last_call_timeout, close_timeout, keep_alive_interval, "
    "keep_alive_max_attempt, lease, rank, is_host, and for etcd cacert, cert, key, protocol, etcd_prefix, "
    "etcd_lease";

// The flags as given. An empty string and a negative number mean that the flag is not given.
struct RunFlags {
  // torchrun's flags.
  std::string nnodes;          // "N" or "MIN:MAX"
  std::string nproc_per_node;  // a number, "auto", "gpu" or "cpu"
  int node_rank = -1;
  std::string rdzv_backend, rdzv_endpoint, rdzv_id, rdzv_conf;
  bool standalone = false;
  int max_restarts = -1;
  double monitor_interval = 0;
  std::string start_method;
  std::vector<std::string> roles;  // "NAME" (renames the workers), or "NAME=COUNT[:COMMAND]"
  bool module = false, no_python = false, run_path = false;
  std::string log_dir, redirects = "0", tee = "0", local_ranks_filter;
  std::string master_addr, local_addr;
  int master_port = -1;
  std::string signals_to_handle;  // "SIGTERM,SIGINT"; "": kDefaultSignals
  // Tandem's own flags.
  std::string cluster;  // the path of a cluster file
  int servers = -1, workers = -1, actors = -1, learners = -1, replay = -1;
  int ps_followers = -1, ps_min_copies = -1;
  std::vector<std::string> restart;  // "ROLE=alone[:LIMIT]" or "ROLE=job"
  std::string on_failure;            // "restart" or "reform"
  std::string bind;                  // "none", "core" or "numa"
  std::string job_store;             // "node" or "etcd"
  double grace_seconds = 30;
  double timeout_seconds = 0;
  double lease_seconds = 10;
  std::string spill_dir;
  std::string wal_dir;
  std::string checkpoint_root;
  int metrics_port = -1;  // the port of this node's first server; the next one has this + 1
  // The flags that were set by an environment variable, with its name: {"--nnodes", "PET_NNODES"}.
  std::map<std::string, std::string> variables;
};

// Declares the flags on `run`; parsing writes them to `flags`, which must live until then. The flags of
// torchrun are added to `variables`, for the command to read.
void AddRunFlags(CLI::App* run, RunFlags* flags, VariableOptions* variables);

// Returns the index in `args`, the words after "run", at which the program's command line begins: after "--",
// or at the first word that is neither a flag of `run` nor a flag's value. Returns args.size() if there is
// none.
size_t ProgramStart(const CLI::App& run, const std::vector<std::string>& args);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_FLAGS_H_
