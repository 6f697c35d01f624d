// SPDX-License-Identifier: Apache-2.0
#include "launcher/process_spec.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status.h"
#include "launcher/error_file.h"
#include "launcher/host/pinning.h"
#include "launcher/log_directories.h"
#include "launcher/silence_rules.h"
#include "rpc/network.h"

namespace tandem::launcher {

absl::StatusOr<std::vector<PlannedProcess>> PlanProcesses(const NodeOptions& options) {
  std::vector<PlannedProcess> planned;
  for (const RolePlan& role : options.plan.roles) {
    std::string program = options.self;
    if (!role.command.empty() && role.command[0] != "tandem") {
      TANDEM_ASSIGN_OR_RETURN(program, FindProgram(role.command[0]));
    }
    for (int i = 0; i < role.processes(); ++i)
      planned.push_back({.role = &role, .local_rank = i, .program = program});
  }
  // Processes with the same `bind` share the processors.
  for (const Bind bind : {Bind::kCore, Bind::kNuma}) {
    std::vector<PlannedProcess*> bound;
    for (PlannedProcess& process : planned) {
      if (process.role->bind == bind) bound.push_back(&process);
    }
    if (bound.empty()) continue;
    const CpuTopology topology = ReadCpuTopology("/sys/devices/system", AllowedProcessors());
    for (size_t i = 0; i < bound.size(); ++i) {
      bound[i]->cpus = ProcessorsOf(topology, bind, static_cast<int>(i), static_cast<int>(bound.size()));
    }
  }
  return planned;
}

absl::StatusOr<ProcessSpec> ProcessSpecFactory::Make(const PlannedProcess& process, const NodeRound& round,
                                                     int restarts_alone, int server_port) {
  const RolePlan& role = *process.role;
  ProcessSlot place{.plan = &options_.plan,
                    .role = &role,
                    .round = &round.round,
                    .local_rank = process.local_rank,
                    .run_id = options_.run_id,
                    .checkpoint_root = options_.checkpoint_root,
                    .key_file = options_.key_file,
                    .agent = round.agent,
                    .assignment = round.assignment,
                    .lease = options_.lease,
                    .restarts_alone = restarts_alone};
  ProcessSpec spec{.name = absl::StrCat(role.name, "/", place.role_rank()), .program = process.program};
  if (role.command.empty()) {
    spec.args = ServerCommand(place, server_port);
    place.spill_dir = absl::StrCat(options_.spill_dir, "/ps-", place.local_rank);
    if (!options_.wal_dir.empty()) {
      TANDEM_ASSIGN_OR_RETURN(place.wal_dir, WalDirOf(place));
      spec.serving_dir = place.wal_dir;
    }
  } else {
    spec.args = role.command;
  }
  spec.front = place.is_main() && place.role_rank() == 0;
  // Rank 0 writes to a pipe, but may draw as on a terminal, because its output is passed on unchanged.
  place.terminal = spec.front && terminal_;
  spec.cpus = process.cpus;
  spec.serves = role.serves;
  spec.terminal = options_.terminal_input;
  spec.beat_period = SilenceRules::Interval(options_.lease);
  TANDEM_ASSIGN_OR_RETURN(const std::string attempt, MakeAttemptDir(place));
  place.error_file = spec.error_file = absl::StrCat(attempt, "/error.json");
  RemoveErrorReport(spec.error_file);  // an earlier job of this name may have left one
  if (role.followers > 0) spec.serving_dir = place.serving_dir = attempt;
  spec.files = FilesOf(place, spec.name, attempt);
  spec.environment = ToStrings(VariablesOf(own_, place));
  return spec;
}

absl::StatusOr<std::string> ProcessSpecFactory::WalDirOf(const ProcessSlot& place) {
  // Tables belong to one round: in the next one the workers begin with a checkpoint.
  const std::string directory = absl::StrCat(options_.wal_dir, "/", options_.run_id, "-", place.round->epoch,
                                             "/ps-", place.role_rank());
  if (!wal_dirs_.contains(directory)) {
    TANDEM_RETURN_IF_ERROR(SetLogAside(directory));
    wal_dirs_.insert(directory);
  }
  return directory;
}

std::vector<std::string> ProcessSpecFactory::ServerCommand(const ProcessSlot& place, int port) const {
  std::vector<std::string> args = {"tandem",        "ps",
                                   "--index",       absl::StrCat(place.copy_place().shard),
                                   "--num-servers", absl::StrCat(place.round->WorldSize("ps"))};
  if (place.role->followers > 0) {
    args.insert(args.end(), {"--copy", absl::StrCat(place.copy_place().copy), "--followers",
                             absl::StrCat(place.role->followers)});
    // A copy that is restarted alone waits for a primary if the job's store has lost its memory.
    if (place.restarts_alone == 0) args.push_back("--fresh");
  }
  if (!options_.advertise.empty()) {
    const std::string listen = rpc::ListenAddressFor(options_.advertise, port);
    args.insert(args.end(), {"--listen", listen, "--advertise", options_.advertise});
  }
  if (options_.metrics_port >= 0) {
    // The kernel picks a port for each server if it is 0; the server's log names it.
    const int port = options_.metrics_port == 0 ? 0 : options_.metrics_port + place.local_rank;
    args.insert(args.end(), {"--metrics-port", absl::StrCat(port)});
  }
  return args;
}

absl::StatusOr<std::string> ProcessSpecFactory::MakeAttemptDir(const ProcessSlot& place) const {
  // Absolute, because a program may change its directory.
  std::error_code error;
  const std::string attempt = absl::StrCat(
      std::filesystem::absolute(options_.attempts_dir, error).string(), "/attempt_", place.round->restarts,
      "/", place.is_main() ? "" : absl::StrCat(place.role->name, "-"), place.local_rank);
  std::filesystem::create_directories(attempt, error);
  if (!error) return attempt;
  return absl::UnavailableError(absl::StrCat("cannot make the log directory '", attempt,
                                             "': ", error.message(), "; choose another --log-dir"));
}

OutputFiles ProcessSpecFactory::FilesOf(const ProcessSlot& place, const std::string& name,
                                        const std::string& attempt) {
  OutputFiles files;
  files.log = absl::StrCat(options_.log_dir, "/", absl::StrReplaceAll(name, {{"/", "-"}}), ".log");
  files.append = !logs_.insert(files.log).second;
  if (!place.is_main()) return files;
  const int tee = options_.tee.Of(place.local_rank), redirect = options_.redirects.Of(place.local_rank);
  const bool shown = !options_.shown.has_value() || options_.shown->contains(place.local_rank);
  for (const Console::Stream stream : {Console::kOut, Console::kErr}) {
    const int bit = stream == Console::kOut ? StreamChoice::kOut : StreamChoice::kErr;
    if (((tee | redirect) & bit) != 0) {
      files.streams[stream] = absl::StrCat(attempt, stream == Console::kOut ? "/stdout.log" : "/stderr.log");
    }
    files.console[stream] = shown && ((redirect & ~tee) & bit) == 0;
  }
  return files;
}

}  // namespace tandem::launcher
