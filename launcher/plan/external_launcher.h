#ifndef TANDEM_LAUNCHER_PLAN_EXTERNAL_LAUNCHER_H_
#define TANDEM_LAUNCHER_PLAN_EXTERNAL_LAUNCHER_H_

// What others that start one `tandem run` on each node have told it: Slurm's srun, Open MPI's mpirun
// and MPICH's mpiexec, Kubernetes' indexed jobs. It gives defaults; flags win.

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem::launcher {

// A plain value.
struct ExternalLauncher {
  std::string name;        // "Slurm job 17"
  int nnodes = 0;          // 0: it did not say
  int node_rank = -1;      // -1: it did not say
  int nproc_per_node = 0;  // 0: it did not say
  std::string host;        // of node 0; "": it did not say
  int port = 0;            // at which the nodes meet there
  std::string run_id;      // of the job; "": it did not say
};

// Of the variables that `lookup` finds, and this machine's full name
// ("train-1.train.default.svc.cluster.local"). Nothing when nobody has started us that way, or when it means
// one node only. FailedPrecondition when it has started several of us on one node, InvalidArgument for
// variables that make no sense.
absl::StatusOr<std::optional<ExternalLauncher>> DetectExternalLauncher(
    const std::function<std::optional<std::string>(absl::string_view name)>& lookup,
    const std::function<std::string()>& full_host_name);

// The first host of Slurm's lists: "n[03-05,9],login1" is n03. Empty when it is no such list.
std::string FirstHost(absl::string_view node_list);

}  // namespace tandem::launcher

#endif  // TANDEM_LAUNCHER_PLAN_EXTERNAL_LAUNCHER_H_
