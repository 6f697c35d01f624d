// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/flags.h"

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/local_path.h"
#include "cluster/environment.h"
#include "launcher/plan/signals.h"
#include "launcher/plan/variable_options.h"
#include "rpc/security/security_flags.h"

namespace tandem::launcher {
namespace {

// Returns both spellings of a flag, which torchrun accepts: "--rdzv-id,--rdzv_id".
std::string Both(absl::string_view flag) {
  const std::string underscores = absl::StrCat("--", absl::StrReplaceAll(flag.substr(2), {{"-", "_"}}));
  return underscores == flag ? std::string(flag) : absl::StrCat(flag, ",", underscores);
}

// Returns the environment variable of a torchrun flag, PET_<NAME>, which Kubernetes operators use.
std::string Variable(absl::string_view flag) {
  return absl::StrCat("PET_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag.substr(2), {{"-", "_"}})));
}

// The command and its options that variables set as well.
struct Command {
  CLI::App* run;
  VariableOptions* variables;
};

template <typename T>
CLI::Option* Torchrun(const Command& command, const std::string& flag, T* value, const std::string& help,
                      const std::string& brief = "") {
  const std::string names = brief.empty() ? Both(flag) : absl::StrCat(brief, ",", Both(flag));
  return command.variables->Add(command.run->add_option(names, *value, help), Variable(flag));
}

CLI::Option* TorchrunFlag(const Command& command, const std::string& flag, bool* value,
                          const std::string& help, const std::string& brief = "") {
  const std::string names = brief.empty() ? Both(flag) : absl::StrCat(brief, ",", Both(flag));
  return command.variables->Add(command.run->add_flag(names, *value, help), Variable(flag));
}

void AddPlaces(const Command& command, RunFlags* flags) {
  Torchrun(command, "--nnodes", &flags->nnodes,
           "Nodes, each with a `tandem run` of its own: N, or MIN:MAX [1]");
  Torchrun(command, "--nproc-per-node", &flags->nproc_per_node,
           "Workers on this node: a number, auto, gpu or cpu [1]");
  Torchrun(command, "--node-rank", &flags->node_rank, "The place of this node, from 0 [the next free one]")
      ->check(CLI::NonNegativeNumber);
  Torchrun(command, "--rdzv-backend", &flags->rdzv_backend,
           "Where the nodes meet: static (a store at --master-addr:--master-port), c10d (a store at "
           "--rdzv-endpoint, of the first node that can bind it) or etcd [static]");
  Torchrun(command, "--rdzv-endpoint", &flags->rdzv_endpoint, "HOST:PORT of that store, or of etcd");
  Torchrun(command, "--rdzv-id", &flags->rdzv_id, "The job's name, the same on all nodes");
  Torchrun(command, "--rdzv-conf", &flags->rdzv_conf,
           absl::StrCat("key=value,... of ", kRendezvousConfKeys, "; times in seconds"));
  command.run
      ->add_option("--job-store", flags->job_store,
                   "Where the processes meet: node (the round's first node serves their store) or etcd "
                   "(their store is where the nodes meet by --rdzv-backend etcd, so the first node may "
                   "die) [node]")
      ->check(CLI::IsMember({"node", "etcd"}));
  TorchrunFlag(command, "--standalone", &flags->standalone, "One node; --rdzv-... are ignored");
  Torchrun(command, "--master-addr", &flags->master_addr, "Host of node 0 [127.0.0.1]");
  Torchrun(command, "--master-port", &flags->master_port,
           "One node: MASTER_PORT of the program [a free one]. Several, static: where the nodes meet [29500]")
      ->check(CLI::Range(0, 65535));
  Torchrun(
      command, "--local-addr", &flags->local_addr,
      "The address at which other nodes reach this one. One node: opens its ports there [unix sockets only]");
}

void AddPrograms(const Command& command, RunFlags* flags) {
  CLI::App* const run = command.run;
  TorchrunFlag(command, "--module", &flags->module, "PROGRAM is a Python module: python3 -u -m PROGRAM",
               "-m");
  TorchrunFlag(command, "--no-python", &flags->no_python, "Run a PROGRAM that ends in .py as it is");
  TorchrunFlag(command, "--run-path", &flags->run_path, "Run the script PROGRAM by Python's runpy");
  command.variables->Add(
      run->add_option("--role", flags->roles,
                      "NAME: what the workers are called [worker]. NAME=COUNT or NAME=COUNT:COMMAND: more "
                      "processes, of another role; may be repeated")
          ->allow_extra_args(false),
      "PET_ROLE");
  LocalPath(run->add_option("--cluster", flags->cluster,
                            "A file of roles: counts, programs, environment, restarts, pinning"))
      ->check(CLI::ExistingFile);
  const auto count = [run](const char* name, int* value, const char* help) {
    run->add_option(name, *value, help)->check(CLI::Range(0, 4096));
  };
  run->add_option("--ps", flags->servers, "Parameter servers on this node [0]")->check(CLI::Range(0, 256));
  run->add_option(
         "--ps-followers", flags->ps_followers,
         "Followers of each parameter server: processes that hold a copy of its tables, on other nodes "
         "if there are any, and take over when it dies; implies --restart ps=alone [0]")
      ->check(CLI::Range(0, cluster::kMostFollowers));
  run->add_option(
         "--ps-min-copies", flags->ps_min_copies,
         "Copies, the server's own included, that must hold a push before it is acknowledged; with 2, "
         "pushes wait while there is no follower [1]")
      ->check(CLI::Range(1, cluster::kMostFollowers + 1));
  count("--workers", &flags->workers, "Workers on this node, as --nproc-per-node");
  count("--learners", &flags->learners,
        "Copies of PROGRAM as `learner`: the workers of reinforcement learning");
  count("--actors", &flags->actors,
        "Copies of PROGRAM as `actor`: stopped after the learners, restarted alone");
  count("--replay", &flags->replay, "Copies of PROGRAM as `replay`: stopped after the learners");
  run->add_option(
         "--bind", flags->bind,
         "Processors of each process: none (all), core (an equal share of the cores) or numa (a memory "
         "node's) [none]")
      ->check(CLI::IsMember({"none", "core", "numa"}));
}

void AddFailures(const Command& command, RunFlags* flags) {
  CLI::App* const run = command.run;
  Torchrun(command, "--max-restarts", &flags->max_restarts,
           "Times that the job is started again after a failure [0]")
      ->check(CLI::NonNegativeNumber);
  run->add_option(
         "--restart", flags->restart,
         "ROLE=alone[:LIMIT]: a process of this role that dies comes back by itself, the others go on; "
         "ROLE=job: it counts as a failure of the job. May be repeated [actor=alone:10, others job]")
      ->allow_extra_args(false);
  run->add_option(
         "--on-failure", flags->on_failure,
         "restart: all processes are started again; reform: the living go on with new ranks [restart]")
      ->check(CLI::IsMember({"restart", "reform"}));
  Torchrun(command, "--monitor-interval", &flags->monitor_interval,
           "Taken for torchrun's sake: ends and failures are seen at once, without polling");
  Torchrun(command, "--start-method", &flags->start_method,
           "Taken for torchrun's sake: processes are always started by fork and exec")
      ->check(CLI::IsMember({"spawn", "fork", "forkserver"}));
  Torchrun(command, "--signals-to-handle", &flags->signals_to_handle,
           absl::StrCat("Signals that end the job, and that the workers get too [", kDefaultSignals, "]"));
  run->add_option("--grace", flags->grace_seconds,
                  "Seconds between the first signal and SIGKILL when processes are stopped; enough for a "
                  "checkpoint")
      ->check(CLI::Range(0.0, 3600.0))
      ->capture_default_str();
  command.variables->Add(
      run->add_option("--lease", flags->lease_seconds,
                      "Seconds without a sign of life after which a process of the job counts as hung and is "
                      "ended; the same on all nodes")
          ->check(CLI::Range(cluster::kShortestLeaseSeconds, cluster::kLongestLeaseSeconds))
          ->capture_default_str(),
      cluster::kLeaseVariable);
  run->add_option("--timeout", flags->timeout_seconds, "Seconds after which the job is stopped; 0: never")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
}

void AddLogs(const Command& command, RunFlags* flags) {
  CLI::App* const run = command.run;
  rpc::AddSecurityFlags(run);
  LocalPath(Torchrun(command, "--log-dir", &flags->log_dir,
                     "Where worker-0.log, ps-0.log, ... go [runs/<run id>/logs]"));
  Torchrun(command, "--redirects", &flags->redirects,
           "Streams that go to files only: 1 stdout, 2 stderr, 3 both; of some workers: 0:1,1:3", "-r");
  Torchrun(command, "--tee", &flags->tee, "Streams that go to files and the console, written alike", "-t");
  Torchrun(command, "--local-ranks-filter", &flags->local_ranks_filter,
           "Workers whose output is shown, by local rank: 0,2 [all]");
  LocalPath(run->add_option(
      "--spill-dir", flags->spill_dir,
      "Where servers put rows of tables with `spill` that do not fit their memory; removed at the "
      "end [LOG_DIR/spill]"));
  LocalPath(run->add_option(
      "--wal-dir", flags->wal_dir,
      "Servers log every push below this directory, on a local disk, and come back with it, at the same "
      "address, when they die; implies --restart ps=alone. A job that is started again, for example after "
      "the "
      "machine was, begins at its newest checkpoint and sets the logs aside (*.old). Removed when the job "
      "has "
      "ended well [no log]"));
  LocalPath(run->add_option(
      "--checkpoint-root", flags->checkpoint_root,
      "Directory below which servers write and read checkpoints, whatever a client asks for; made if "
      "it is missing [any, or TANDEM_CHECKPOINT_ROOT]"));
  run->add_option(
         "--metrics-port", flags->metrics_port,
         "Parameter server i of this node, from 0, serves /metrics for Prometheus at this port + i; 0: the "
         "kernel picks [none do]")
      ->check(CLI::Range(0, 65535 - 256));
}

}  // namespace

void AddRunFlags(CLI::App* run, RunFlags* flags, VariableOptions* variables) {
  const Command command = {run, variables};
  AddPlaces(command, flags);
  AddPrograms(command, flags);
  AddFailures(command, flags);
  AddLogs(command, flags);
}

size_t ProgramStart(const CLI::App& run, const std::vector<std::string>& args) {
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string& word = args[i];
    if (word == "--") return i + 1;
    if (!absl::StartsWith(word, "-") || word == "-") return i;
    const bool brief = !absl::StartsWith(word, "--");
    // "--flag=value" and "-r3" hold their values.
    if (brief ? word.size() > 2 : absl::StrContains(word, '=')) continue;
    const CLI::Option* option = run.get_option_no_throw(word);
    if (option != nullptr && option->get_items_expected_min() > 0) ++i;
  }
  return args.size();
}

}  // namespace tandem::launcher
