// SPDX-License-Identifier: Apache-2.0
#include "launcher/run_job.h"

#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/command_context.h"
#include "base/status.h"
#include "launcher/endpoint_lookup.h"
#include "launcher/log_directories.h"
#include "launcher/node_agent.h"
#include "launcher/plan/external_launcher.h"
#include "launcher/plan/launch_plan.h"
#include "launcher/plan/signals.h"
#include "launcher/process/processes.h"
#include "launcher/rendezvous_handler.h"
#include "launcher/rendezvous_options.h"
#include "rpc/network.h"

namespace tandem::launcher {
namespace {

constexpr int kCannotExecute = 126;  // as in sh(1)
constexpr int kNotFound = 127;

std::optional<std::string> Variable(absl::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value == nullptr ? std::nullopt : std::make_optional<std::string>(value);
}

// Returns this machine's full name: "train-1.train.default.svc.cluster.local"
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

// Removes the servers' spill directories. A server removes its own at its end, unless it is killed.
void RemoveSpillDirs(const std::string& directory, int servers) {
  std::error_code ignored;
  for (int i = 0; i < servers; ++i) {
    std::filesystem::remove_all(absl::StrCat(directory, "/ps-", i), ignored);
  }
  std::filesystem::remove(directory, ignored);  // if it is empty
}

// Returns the agent's options from the flags, and creates the log directory. The plan is not filled in.
// `alone`: whether this launcher is the job's only one.
absl::StatusOr<NodeAgentOptions> MakeAgentOptions(const RunFlags& flags, bool alone) {
  NodeAgentOptions options;
  NodeOptions& node = options.node;
  std::error_code error;
  node.self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("cannot read /proc/self/exe: ", error.message()));
  TANDEM_ASSIGN_OR_RETURN(node.redirects, StreamChoice::Parse("--redirects", flags.redirects));
  TANDEM_ASSIGN_OR_RETURN(node.tee, StreamChoice::Parse("--tee", flags.tee));
  TANDEM_ASSIGN_OR_RETURN(node.shown, ParseRanksFilter(flags.local_ranks_filter));
  const std::string stamp =
      absl::StrCat(absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()), "-", ::getpid());
  // All nodes must use the same run id, so only a single launcher can invent one.
  node.run_id = !flags.rdzv_id.empty() ? flags.rdzv_id : alone ? stamp : "none";
  const std::string folder = flags.rdzv_id.empty() ? stamp : absl::StrCat(flags.rdzv_id, "-", stamp);
  node.log_dir = flags.log_dir.empty() ? absl::StrCat("runs/", folder, "/logs") : flags.log_dir;
  node.attempts_dir = flags.log_dir.empty() ? node.log_dir : absl::StrCat(flags.log_dir, "/", folder);
  if (!flags.wal_dir.empty()) {
    node.wal_dir = std::filesystem::absolute(flags.wal_dir, error);
    if (!error) std::filesystem::create_directories(node.wal_dir, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot make the directory '", flags.wal_dir,
                                                 "' for the servers' logs: ", error.message(),
                                                 "; choose another --wal-dir"));
    }
  }
  node.spill_dir = flags.spill_dir.empty() ? absl::StrCat(node.log_dir, "/spill") : flags.spill_dir;
  if (!flags.checkpoint_root.empty()) {
    // The own command of the role "ps" may change the directory.
    node.checkpoint_root = std::filesystem::absolute(flags.checkpoint_root, error);
    if (!error) std::filesystem::create_directories(node.checkpoint_root, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("cannot make the directory '", flags.checkpoint_root,
                                                 "' for checkpoints: ", error.message(),
                                                 "; choose another --checkpoint-root"));
    }
  }
  node.metrics_port = flags.metrics_port;
  // --master-port of a job with several nodes is the port of the static rendezvous unless --rdzv-endpoint is
  // given.
  const bool is_rendezvous_port = !alone && flags.rdzv_endpoint.empty();
  options.master_port = flags.master_port > 0 && !is_rendezvous_port ? flags.master_port : 0;
  node.lease = absl::Seconds(flags.lease_seconds);
  options.grace = absl::Seconds(flags.grace_seconds);
  if (flags.timeout_seconds > 0) options.timeout = absl::Seconds(flags.timeout_seconds);
  std::filesystem::create_directories(node.log_dir, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make the log directory '", node.log_dir,
                                               "': ", error.message(), "; choose another --log-dir"));
  }
  return options;
}

// Returns whether the plan's only process can have this launcher's terminal: a debugger's prompt, for
// instance. A launcher in the background has none to give.
bool HasTerminal(const LaunchPlan& plan) {
  int processes = 0;
  for (const RolePlan& role : plan.roles) processes += role.processes();
  return processes == 1 && ::isatty(STDIN_FILENO) == 1 && ::tcgetpgrp(STDIN_FILENO) == ::getpgrp();
}

// Returns NotFound for a Python script that does not exist. Python itself would exit with 2, in every
// process. The program in PYTHON_EXEC may see other files: those of a container.
absl::Status CheckScripts(const LaunchPlan& plan) {
  if (!Variable("PYTHON_EXEC").value_or("").empty()) return absl::OkStatus();
  for (const RolePlan& role : plan.roles) {
    std::error_code ignored;
    if (role.script.empty() || std::filesystem::exists(role.script, ignored)) continue;
    return absl::NotFoundError(absl::StrCat("there is no program '", role.script, "'"));
  }
  return absl::OkStatus();
}

struct Job {
  NodeAgentOptions agent;
  RendezvousHandlerOptions rendezvous;
};

absl::StatusOr<Job> PrepareJob(RunFlags flags, const std::vector<std::string>& program, Console& console) {
  TANDEM_ASSIGN_OR_RETURN(const std::string taken, ApplyExternalDefaults(Variable, FullHostName, &flags));
  if (!taken.empty()) console.Say(taken);
  TANDEM_ASSIGN_OR_RETURN(LaunchPlan plan, MakePlan(flags, program));
  TANDEM_RETURN_IF_ERROR(CheckScripts(plan));
  Job job;
  TANDEM_ASSIGN_OR_RETURN(job.rendezvous, MakeRendezvousOptions(flags, plan.max_restarts));
  TANDEM_ASSIGN_OR_RETURN(job.agent, MakeAgentOptions(flags, job.rendezvous.backend.empty()));
  job.rendezvous.rendezvous.run_id = job.agent.node.run_id;
  job.agent.node.plan = std::move(plan);
  job.agent.node.terminal_input = job.rendezvous.backend.empty() && HasTerminal(job.agent.node.plan);
  return job;
}

// Waits until the name of the host at which the nodes meet leads to an address. Returns the exit code if a
// signal ends the job meanwhile, else 0.
absl::StatusOr<int> AwaitEndpoint(Processes* processes, RendezvousHandlerOptions* options) {
  constexpr absl::string_view kBackends[] = {"static", "c10d", "etcd"};  // Open refuses the others
  if (!absl::c_linear_search(kBackends, options->backend) || options->endpoint.empty()) return 0;
  int signal = 0;
  const auto pause = [&](absl::Duration duration) {
    const absl::Time until = MonotonicNow() + duration;
    while (signal == 0 && MonotonicNow() < until) {
      for (const int one : processes->Wait(until, /*wake=*/-1, /*patient=*/true).signals) signal = one;
    }
    return signal == 0;
  };
  absl::StatusOr<std::string> found =
      FindLocalAddress(options->endpoint, options->rendezvous.join_timeout,
                       {.find = rpc::LocalAddressFor, .pause = pause, .say = [&](const std::string& text) {
                          processes->console().Say(text);
                        }});
  if (signal != 0) {
    processes->console().Say(absl::StrCat("stopping on ", SignalName(signal)));
    return 128 + signal;
  }
  TANDEM_ASSIGN_OR_RETURN(options->route_addr, std::move(found));
  return 0;
}

absl::StatusOr<int> RunAgent(Job job, Processes* processes) {
  const std::string spill_dir = job.agent.node.spill_dir;
  const RolePlan* const role = job.agent.node.plan.Find("ps");
  const int servers = role == nullptr ? 0 : role->processes();
  const std::string wal_dir = job.agent.node.wal_dir, run_id = job.agent.node.run_id;
  TANDEM_ASSIGN_OR_RETURN(const int stopped, AwaitEndpoint(processes, &job.rendezvous));
  if (stopped != 0) return stopped;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<RendezvousHandler> rendezvous,
                          RendezvousHandler::Open(job.rendezvous));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<NodeAgent> agent,
                          NodeAgent::Create(std::move(job.agent), processes, rendezvous.get()));
  const int exit_code = agent->Run();
  RemoveSpillDirs(spill_dir, servers);
  // After a failure the logs stay: they tell what the servers had.
  if (!wal_dir.empty() && exit_code == 0) RemoveLogs(wal_dir, run_id);
  return exit_code;
}

// Adds to a message about a flag that the flag's value comes from an environment variable.
std::string WithVariables(absl::string_view message, const std::map<std::string, std::string>& variables) {
  std::string text(message);
  for (const auto& [flag, variable] : variables) {
    // Not part of a longer flag: "--rdzv-id" is none of "--rdzv-id-x".
    const size_t at = message.find(flag), end = at + flag.size();
    if (at == absl::string_view::npos ||
        (end < message.size() && (message[end] == '-' || absl::ascii_isalnum(message[end]))))
      continue;
    absl::StrAppend(&text, " (", flag, " comes from the environment variable ", variable, ")");
  }
  return text;
}

}  // namespace

int RunJob(RunFlags flags, const std::vector<std::string>& program) {
  const std::map<std::string, std::string> variables = flags.variables;
  const absl::StatusOr<std::vector<int>> signals =
      ParseSignals(flags.signals_to_handle.empty() ? kDefaultSignals : flags.signals_to_handle);
  if (!signals.ok()) {
    (void)Report("run", absl::InvalidArgumentError(WithVariables(signals.status().message(), variables)));
    return kUsageError;
  }
  // First, because it requires that the process has only one thread.
  const absl::StatusOr<std::unique_ptr<Processes>> processes = Processes::Create(*signals);
  if (!processes.ok()) return Report("run", processes.status());
  absl::StatusOr<Job> job = PrepareJob(std::move(flags), program, (*processes)->console());
  const absl::StatusOr<int> exit_code = job.ok() ? RunAgent(*std::move(job), processes->get()) : job.status();
  if (exit_code.ok()) return *exit_code;
  (*processes)->console().Say(WithVariables(exit_code.status().message(), variables));
  return absl::IsNotFound(exit_code.status())           ? kNotFound
         : absl::IsPermissionDenied(exit_code.status()) ? kCannotExecute
         : absl::IsInvalidArgument(exit_code.status())  ? kUsageError
                                                        : 1;
}

}  // namespace tandem::launcher
