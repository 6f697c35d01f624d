// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/external_launcher.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace tandem::launcher {
namespace {

using Lookup = std::function<std::optional<std::string>(absl::string_view name)>;

// torchrun's port of the c10d rendezvous. Slurm jobs add a number derived from their id, because several may
// share a node.
constexpr int kFirstPort = 29400;
constexpr int kPorts = 1000;

absl::StatusOr<int> Number(const Lookup& lookup, absl::string_view name, int absent) {
  const std::optional<std::string> text = lookup(name);
  if (!text || text->empty()) return absent;
  int value;
  if (absl::SimpleAtoi(*text, &value) && value >= 0) return value;
  return absl::InvalidArgumentError(absl::StrCat(
      name, "='", *text, "' is no number; unset it, or give --nnodes, --node-rank and --rdzv-endpoint"));
}

absl::Status SeveralHere(absl::string_view who, int copies, absl::string_view instead) {
  return absl::FailedPreconditionError(
      absl::StrCat(who, " has started ", copies,
                   " copies of `tandem run` on this node, which starts the processes "
                   "of a node by itself: use ",
                   instead, " and give their number as --nproc-per-node (", copies,
                   "); --standalone makes each copy a job of its own"));
}

absl::StatusOr<std::optional<ExternalLauncher>> Slurm(const Lookup& lookup) {
  ExternalLauncher slurm;
  const std::string id = *lookup("SLURM_JOB_ID");
  slurm.name = absl::StrCat("Slurm job ", id);
  TANDEM_ASSIGN_OR_RETURN(const int allocated, Number(lookup, "SLURM_JOB_NUM_NODES", 1));
  TANDEM_ASSIGN_OR_RETURN(slurm.nnodes, Number(lookup, "SLURM_NNODES", allocated));
  // Outside a job step (srun) there is one launcher, on the first node, however many nodes the job has. A
  // step may have fewer nodes than its job.
  if (!lookup("SLURM_STEP_ID")) return std::nullopt;
  TANDEM_ASSIGN_OR_RETURN(slurm.nnodes, Number(lookup, "SLURM_STEP_NUM_NODES", slurm.nnodes));
  slurm.nnodes = std::max(slurm.nnodes, 1);
  TANDEM_ASSIGN_OR_RETURN(const int started, Number(lookup, "SLURM_STEP_NUM_TASKS", slurm.nnodes));
  if (started > slurm.nnodes) {
    const int here = (started + slurm.nnodes - 1) / slurm.nnodes;
    return SeveralHere("srun", here, "srun --ntasks-per-node=1");
  }
  if (slurm.nnodes == 1) return std::nullopt;
  TANDEM_ASSIGN_OR_RETURN(slurm.node_rank, Number(lookup, "SLURM_NODEID", -1));
  TANDEM_ASSIGN_OR_RETURN(const int tasks, Number(lookup, "SLURM_NTASKS_PER_NODE", 0));
  if (tasks > 1) slurm.nproc_per_node = tasks;
  std::optional<std::string> nodes = lookup("SLURM_STEP_NODELIST");
  if (!nodes) nodes = lookup("SLURM_JOB_NODELIST");
  if (!nodes) nodes = lookup("SLURM_NODELIST");
  slurm.host = FirstHost(nodes.value_or(""));
  int number = 0;
  slurm.port = kFirstPort + (absl::SimpleAtoi(id, &number) ? number % kPorts : 0);
  slurm.run_id = absl::StrCat("slurm-", id);
  return slurm;
}

// The environment variables in which an MPI launcher tells its processes their ranks.
struct Mpirun {
  const char* name;
  const char *size, *rank, *local_size;  // variables
  const char* instead;                   // a command that starts one process on each node
};
constexpr Mpirun kMpiruns[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     "mpirun --map-by ppr:1:node"},
    // MPICH and the implementations derived from it.
    {"MPICH's mpiexec", "PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS", "mpiexec -ppn 1"},
};

absl::StatusOr<std::optional<ExternalLauncher>> UnderMpirun(const Lookup& lookup, const Mpirun& mpirun) {
  ExternalLauncher mpi;
  mpi.name = mpirun.name;
  TANDEM_ASSIGN_OR_RETURN(mpi.nnodes, Number(lookup, mpirun.size, 1));
  if (mpi.nnodes <= 1) return std::nullopt;
  TANDEM_ASSIGN_OR_RETURN(const int here, Number(lookup, mpirun.local_size, 1));
  if (here > 1) return SeveralHere(mpirun.name, here, mpirun.instead);
  TANDEM_ASSIGN_OR_RETURN(mpi.node_rank, Number(lookup, mpirun.rank, -1));
  return mpi;
}

absl::StatusOr<std::optional<ExternalLauncher>> Kubernetes(
    const Lookup& lookup, const std::function<std::string()>& full_host_name) {
  ExternalLauncher pod;
  TANDEM_ASSIGN_OR_RETURN(pod.node_rank, Number(lookup, "JOB_COMPLETION_INDEX", -1));
  // The pods of an indexed job have the host names JOB-INDEX, and JOB-INDEX.SERVICE with a headless service.
  const std::string full = full_host_name();
  const size_t dot = full.find('.');
  absl::string_view job = absl::string_view(full).substr(0, dot);
  pod.name = "Kubernetes indexed job";
  if (absl::ConsumeSuffix(&job, absl::StrCat("-", pod.node_rank)) && !job.empty()) {
    absl::StrAppend(&pod.name, " ", job);
    pod.run_id = absl::StrCat("k8s-", job);
    if (dot != std::string::npos) {
      pod.host = absl::StrCat(job, "-0", full.substr(dot));
      pod.port = kFirstPort;
    }
  }
  return pod;
}

}  // namespace

std::string FirstHost(absl::string_view list) {
  // The first element ends at a comma outside brackets.
  size_t end = 0, depth = 0;
  for (; end < list.size() && (depth > 0 || list[end] != ','); ++end) {
    if (list[end] == '[') ++depth;
    if (list[end] == ']' && depth > 0) --depth;
  }
  absl::string_view rest = list.substr(0, end);
  if (depth > 0) return "";
  std::string host;
  while (!rest.empty()) {
    const size_t open = rest.find('[');
    absl::StrAppend(&host, rest.substr(0, open));
    if (open == absl::string_view::npos) break;
    const size_t close = rest.find(']', open);
    const absl::string_view ranges = rest.substr(open + 1, close - open - 1);
    absl::StrAppend(&host, ranges.substr(0, ranges.find_first_of(",-")));
    rest.remove_prefix(close + 1);
  }
  return host;
}

absl::StatusOr<std::optional<ExternalLauncher>> DetectExternalLauncher(
    const Lookup& lookup, const std::function<std::string()>& full_host_name) {
  // An mpirun or a Kubernetes pod inside a Slurm job is the nearer launcher. Slurm itself may set PMI_SIZE,
  // too, so PMI_SIZE alone does not mean MPICH.
  for (const Mpirun& mpirun : kMpiruns) {
    if (lookup(mpirun.size) && lookup(mpirun.local_size)) return UnderMpirun(lookup, mpirun);
  }
  if (lookup("JOB_COMPLETION_INDEX")) return Kubernetes(lookup, full_host_name);
  if (lookup("SLURM_JOB_ID")) return Slurm(lookup);
  return std::nullopt;
}

absl::StatusOr<std::string> ApplyExternalDefaults(const Lookup& lookup,
                                                  const std::function<std::string()>& full_host_name,
                                                  RunFlags* flags) {
  if (flags->standalone) return "";
  const absl::StatusOr<std::optional<ExternalLauncher>> detected =
      DetectExternalLauncher(lookup, full_host_name);
  if (flags->nnodes == "1" || flags->nnodes == "1:1") {
    if (absl::IsFailedPrecondition(detected.status())) return detected.status();  // several launchers here
    return "";
  }
  TANDEM_RETURN_IF_ERROR(detected.status());
  const std::optional<ExternalLauncher>& found = *detected;
  if (!found.has_value()) return "";
  std::string told = absl::StrCat("started by ", found->name, ":");
  const auto take = [&told](std::string* flag, absl::string_view name, const std::string& value) {
    if (!flag->empty() || value.empty()) return;
    *flag = value;
    absl::StrAppend(&told, " --", name, " ", value);
  };
  if (flags->nnodes.empty() && found->nnodes == 0) {
    if (flags->rdzv_endpoint.empty() && flags->master_addr.empty()) return "";  // a single pod
    return absl::InvalidArgumentError(
        absl::StrCat(told, " it does not say how many nodes there are; give --nnodes"));
  }
  if (found->nnodes > 0) take(&flags->nnodes, "nnodes", absl::StrCat(found->nnodes));
  if (flags->node_rank < 0 && found->node_rank >= 0) {
    flags->node_rank = found->node_rank;
    absl::StrAppend(&told, " --node-rank ", found->node_rank);
  }
  if (found->nproc_per_node > 0 && flags->workers < 0) {
    take(&flags->nproc_per_node, "nproc-per-node", absl::StrCat(found->nproc_per_node));
  }
  if (flags->rdzv_endpoint.empty() && flags->master_addr.empty()) {
    if (found->host.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          told, " it does not say where node 0 is; give --rdzv-endpoint HOST:PORT, the same on all nodes"));
    }
    take(&flags->rdzv_endpoint, "rdzv-endpoint", absl::StrCat(found->host, ":", found->port));
  }
  take(&flags->rdzv_id, "rdzv-id", found->run_id);
  return told;
}

}  // namespace tandem::launcher
