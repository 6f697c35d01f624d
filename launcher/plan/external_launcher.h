// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_LAUNCHER_PLAN_EXTERNAL_LAUNCHER_H_
#define TANDEM_LAUNCHER_PLAN_EXTERNAL_LAUNCHER_H_

// Reads the environment variables of a program that started one `tandem run` on each node: Slurm's srun, Open
// MPI's mpirun, MPICH's mpiexec, or a Kubernetes indexed job. They give defaults for flags that are not
// given.

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "launcher/plan/flags.h"

namespace tandem::launcher {

// A plain value.
struct ExternalLauncher {
  std::string name;        // "Slurm job 17"
  int nnodes = 0;          // 0: it did not say
  int node_rank = -1;      // -1: it did not say
  int nproc_per_node = 0;  // 0: it did not say
  std::string host;        // node 0's; "": it did not say
  int port = 0;            // the rendezvous port on `host`
  std::string run_id;      // the job's name; "": it did not say
};

// Detects the external launcher from the environment variables that `lookup` returns and from this machine's
// full name ("train-1.train.default.svc.cluster.local"). Returns nullopt if there is none, or if its job has
// one node only. Returns FailedPrecondition if it started several copies of `tandem run` on this node, and
// InvalidArgument for a malformed variable.
absl::StatusOr<std::optional<ExternalLauncher>> DetectExternalLauncher(
    const std::function<std::optional<std::string>(absl::string_view name)>& lookup,
    const std::function<std::string()>& full_host_name);

// Fills in the flags of `tandem run` that are not given and that DetectExternalLauncher's launcher
// determines: number and rank of the nodes, processes per node, rendezvous, and run id. Returns a line for
// the user that names these flags, or "" if there is no external launcher. --standalone and --nnodes 1 turn
// the detection off. Returns the errors of DetectExternalLauncher, and InvalidArgument if the launcher does
// not say how many nodes there are, or which host is node 0.
absl::StatusOr<std::string> ApplyExternalDefaults(
    const std::function<std::optional<std::string>(absl::string_view name)>& lookup,
    const std::function<std::string()>& full_host_name, RunFlags* flags);

// Returns the first host of a Slurm node list: "n03" for "n[03-05,9],login1". Returns "" for a malformed
// list.
std::string FirstHost(absl::string_view node_list);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_EXTERNAL_LAUNCHER_H_
