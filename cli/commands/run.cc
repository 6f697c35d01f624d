// tandem run: starts a job's processes on this machine, alone or together with the launchers of other
// machines.

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "launcher/node_agent.h"
#include "launcher/plan/external_launcher.h"
#include "launcher/plan/flags.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/streams.h"
#include "launcher/process/processes.h"
#include "launcher/rendezvous_handler.h"

namespace tandem::cli {
namespace {

constexpr int kCannotExecute = 126;  // as in sh(1)
constexpr int kNotFound = 127;
constexpr int kStaticPort = 29500;   // torchrun's --master-port
constexpr int kDynamicPort = 29400;  // torchrun's, of c10d

std::optional<std::string> Variable(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::make_optional<std::string>(value);
}

// "train-1.train.default.svc.cluster.local"
std::string FullHostName() {
  char name[256] = {};
  if (::gethostname(name, sizeof(name) - 1) != 0) return "";
  addrinfo hints{};
  hints.ai_flags = AI_CANONNAME;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name, nullptr, &hints, &found) != 0) return name;
  std::string full = found->ai_canonname == nullptr ? name : found->ai_canonname;
  ::freeaddrinfo(found);
  return full;
}

// Fills in what the flags do not say from what another launcher has told us; the line that tells of it, or
// "".
absl::StatusOr<std::string> TakeForeignDefaults(launcher::RunFlags* flags) {
  if (flags->standalone || flags->nnodes == "1" || flags->nnodes == "1:1") return "";
  TANDEM_ASSIGN_OR_RETURN(const std::optional<launcher::ExternalLauncher> found,
                          launcher::DetectExternalLauncher(Variable, FullHostName));
  if (!found.has_value()) return "";
  std::string told = absl::StrCat("started by ", found->name, ":");
  const auto take = [&told](std::string* flag, absl::string_view name, const std::string& value) {
    if (!flag->empty() || value.empty()) return;
    *flag = value;
    absl::StrAppend(&told, " --", name, " ", value);
  };
  if (flags->nnodes.empty() && found->nnodes == 0) {
    if (flags->rdzv_endpoint.empty() && flags->master_addr.empty()) return "";  // a pod by itself
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

// Where the launchers meet.
absl::StatusOr<launcher::RendezvousHandlerOptions> MeetingFrom(const launcher::RunFlags& flags,
                                                               int max_restarts) {
  launcher::RendezvousHandlerOptions options;
  collectives::RendezvousOptions& rendezvous = options.rendezvous;
  if (!flags.nnodes.empty() && !flags.standalone) {
    TANDEM_RETURN_IF_ERROR(launcher::ParseNodes(flags.nnodes, &rendezvous.min_nodes, &rendezvous.max_nodes));
  }
  rendezvous.max_restarts = max_restarts;
  options.node_rank = flags.node_rank;
  TANDEM_RETURN_IF_ERROR(launcher::ReadRendezvousConf(flags.rdzv_conf, &options));
  options.local_addr = flags.local_addr;
  options.master_addr = flags.master_addr;
  const bool etcd = absl::StartsWith(flags.rdzv_backend, "etcd");
  if (flags.standalone || (rendezvous.max_nodes == 1 && !etcd)) {
    if (!flags.rdzv_backend.empty() && flags.rdzv_backend != "static" && flags.rdzv_backend != "c10d") {
      return absl::InvalidArgumentError(absl::StrCat("--rdzv-backend ", flags.rdzv_backend,
                                                     " is not known: expected static, c10d or etcd"));
    }
    rendezvous.min_nodes = rendezvous.max_nodes = 1;
    options.node_rank = -1;
    return options;
  }
  options.backend = flags.rdzv_backend.empty() ? "static" : flags.rdzv_backend;
  options.endpoint = flags.rdzv_endpoint;
  if (options.endpoint.empty() && !flags.master_addr.empty() && options.backend != "etcd") {
    options.endpoint =
        absl::StrCat(flags.master_addr, ":", flags.master_port > 0 ? flags.master_port : kStaticPort);
  }
  if (!options.endpoint.empty() && !absl::StrContains(options.endpoint, ':')) {
    absl::StrAppend(&options.endpoint, ":", etcd ? 2379 : kDynamicPort);
  }
  if (options.backend == "static") {
    if (rendezvous.min_nodes != rendezvous.max_nodes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--nnodes ", flags.nnodes, " needs nodes that may come and go: --rdzv-backend c10d or etcd"));
    }
    if (options.node_rank < 0) {
      return absl::InvalidArgumentError(
          "--node-rank is missing: with --rdzv-backend static every node is told its place, and node 0 "
          "serves the "
          "store; or give --rdzv-backend c10d");
    }
    if (options.endpoint.empty()) {
      return absl::InvalidArgumentError(
          "--master-addr HOST or --rdzv-endpoint HOST:PORT of node 0 is missing");
    }
  }
  if (options.node_rank >= rendezvous.max_nodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node-rank ", options.node_rank, " is out of range: there are ", rendezvous.max_nodes, " nodes"));
  }
  return options;
}

// Servers remove theirs; this is for those that were killed.
void RemoveSpillDirs(const std::string& directory, int servers) {
  std::error_code ignored;
  for (int i = 0; i < servers; ++i) {
    std::filesystem::remove_all(absl::StrCat(directory, "/ps-", i), ignored);
  }
  std::filesystem::remove(directory, ignored);  // if nothing else is in it
}

// Everything but the program itself, from the flags.
absl::StatusOr<launcher::NodeAgentOptions> AgentFrom(const launcher::RunFlags& flags, bool alone) {
  launcher::NodeAgentOptions options;
  std::error_code error;
  options.self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("cannot read /proc/self/exe: ", error.message()));
  TANDEM_ASSIGN_OR_RETURN(options.redirects, launcher::StreamChoice::Parse("--redirects", flags.redirects));
  TANDEM_ASSIGN_OR_RETURN(options.tee, launcher::StreamChoice::Parse("--tee", flags.tee));
  TANDEM_ASSIGN_OR_RETURN(options.shown, launcher::ParseRanksFilter(flags.local_ranks_filter));
  const std::string stamp =
      absl::StrCat(absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()), "-", ::getpid());
  // Nodes must agree on the job's name, so only a launcher by itself can make one up.
  options.run_id = !flags.rdzv_id.empty() ? flags.rdzv_id : alone ? stamp : "none";
  const std::string folder = flags.rdzv_id.empty() ? stamp : absl::StrCat(flags.rdzv_id, "-", stamp);
  options.log_dir = flags.log_dir.empty() ? absl::StrCat("runs/", folder, "/logs") : flags.log_dir;
  options.attempts_dir = flags.log_dir.empty() ? options.log_dir : absl::StrCat(flags.log_dir, "/", folder);
  options.spill_dir = flags.spill_dir.empty() ? absl::StrCat(options.log_dir, "/spill") : flags.spill_dir;
  // With several nodes and the static rendezvous it is where the launchers meet, unless that is said apart.
  const bool meets = !alone && flags.rdzv_endpoint.empty();
  options.master_port = flags.master_port > 0 && !meets ? flags.master_port : 0;
  options.metrics_port = flags.metrics_port;
  options.grace = absl::Seconds(flags.grace_seconds);
  if (flags.timeout_seconds > 0) options.timeout = absl::Seconds(flags.timeout_seconds);
  std::filesystem::create_directories(options.log_dir, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make the log directory '", options.log_dir,
                                               "': ", error.message(), "; choose another --log-dir"));
  }
  return options;
}

int Run(launcher::RunFlags flags, const std::vector<std::string>& program) {
  // First of all: it must be created while there is one thread.
  absl::StatusOr<std::unique_ptr<launcher::Processes>> processes = launcher::Processes::Create();
  if (!processes.ok()) return Report("run", processes.status());
  const auto fail = [&](const absl::Status& status) {
    (*processes)->console().Say(status.message());
    return absl::IsNotFound(status)           ? kNotFound
           : absl::IsPermissionDenied(status) ? kCannotExecute
           : absl::IsInvalidArgument(status)  ? kUsageError
                                              : 1;
  };
  const absl::StatusOr<std::string> told = TakeForeignDefaults(&flags);
  if (!told.ok()) return fail(told.status());
  if (!told->empty()) (*processes)->console().Say(*told);
  absl::StatusOr<launcher::LaunchPlan> plan = launcher::MakePlan(flags, program);
  if (!plan.ok()) return fail(plan.status());
  absl::StatusOr<launcher::RendezvousHandlerOptions> meets = MeetingFrom(flags, plan->max_restarts);
  if (!meets.ok()) return fail(meets.status());
  absl::StatusOr<launcher::NodeAgentOptions> options = AgentFrom(flags, meets->backend.empty());
  if (!options.ok()) return fail(options.status());
  meets->rendezvous.run_id = options->run_id;
  options->plan = *std::move(plan);
  const std::string spill_dir = options->spill_dir;
  const int servers = options->plan.Count("ps");
  absl::StatusOr<std::unique_ptr<launcher::RendezvousHandler>> meeting =
      launcher::RendezvousHandler::Open(*meets);
  if (!meeting.ok()) return fail(meeting.status());
  absl::StatusOr<std::unique_ptr<launcher::NodeAgent>> agent =
      launcher::NodeAgent::Create(*std::move(options), processes->get(), meeting->get());
  if (!agent.ok()) return fail(agent.status());
  const int exit_code = (*agent)->Run();
  RemoveSpillDirs(spill_dir, servers);
  return exit_code;
}

}  // namespace

void AddRun(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<launcher::RunFlags>();
  CLI::App* run =
      app.add_subcommand("run", "Start a job's processes: torchrun for any program, with parameter servers");
  run->footer(
      "Usage: tandem run [OPTIONS] [--] PROGRAM [ARGUMENTS...]\n"
      "Takes torchrun's flags, in both spellings (--nproc-per-node, --nproc_per_node), and sets its "
      "variables: RANK,\n"
      "WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT, ... A PROGRAM that ends in .py is run by python3 "
      "-u.\n"
      "When one process fails the others are stopped, and its exit code is passed on.\n"
      "PROGRAM 'tandem' is this program: tandem run --ps 2 --workers 2 -- tandem train jobs/insteval.yaml");
  launcher::AddRunFlags(run, flags.get());
  run->callback([flags, context] { context->exit_code = Run(*flags, context->program); });
}

}  // namespace tandem::cli
