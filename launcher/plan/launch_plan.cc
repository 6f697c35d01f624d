// SPDX-License-Identifier: Apache-2.0
#include "launcher/plan/launch_plan.h"

#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/read_file.h"
#include "base/status.h"
#include "launcher/plan/cluster_file.h"
#include "launcher/plan/copies.h"

namespace tandem::launcher {
namespace {

constexpr char kWorker[] = "worker";

int ProcessorsHere() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return ::sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

int GpusHere() {
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    return static_cast<int>(
        std::vector<absl::string_view>(absl::StrSplit(visible, ',', absl::SkipWhitespace())).size());
  }
  int count = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", error)) {
    const std::string name = entry.path().filename();
    int index;
    count += absl::StartsWith(name, "nvidia") && absl::SimpleAtoi(name.substr(6), &index) ? 1 : 0;
  }
  return count;
}

RolePlan& FindOrAdd(LaunchPlan* plan, absl::string_view name) {
  for (RolePlan& role : plan->roles) {
    if (role.name == name) return role;
  }
  plan->roles.push_back(DefaultRole(name));
  plan->roles.back().count = 0;
  return plan->roles.back();
}

// Adds the role of a --role flag such as "actor=8:./actor --game pong".
absl::Status AddRole(absl::string_view text, LaunchPlan* plan) {
  const std::pair<absl::string_view, absl::string_view> named = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::pair<absl::string_view, absl::string_view> counted =
      absl::StrSplit(named.second, absl::MaxSplits(':', 1));
  TANDEM_RETURN_IF_ERROR(Annotate(CheckRoleName(named.first), "--role"));
  int count;
  if (!absl::SimpleAtoi(counted.first, &count) || count < 0 || count > kMostProcesses) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--role '", text, "': '", counted.first, "' is no count; expected NAME=COUNT or NAME=COUNT:COMMAND"));
  }
  RolePlan& role = FindOrAdd(plan, named.first);
  role.count = count;
  if (!counted.second.empty()) {
    TANDEM_ASSIGN_OR_RETURN(role.command, SplitCommand(counted.second));
  }
  return absl::OkStatus();
}

// Applies a --restart flag such as "actor=alone:100".
absl::Status SetRestart(absl::string_view text, LaunchPlan* plan) {
  const std::pair<absl::string_view, absl::string_view> named = absl::StrSplit(text, absl::MaxSplits('=', 1));
  const std::pair<absl::string_view, absl::string_view> how =
      absl::StrSplit(named.second, absl::MaxSplits(':', 1));
  const bool alone = how.first == "alone";
  RolePlan* role = nullptr;
  for (RolePlan& one : plan->roles) role = one.name == named.first ? &one : role;
  if (role == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--restart '", text, "': the job has no role '", named.first, "' on this node"));
  }
  role->restart = alone ? Restart::kAlone : Restart::kJob;
  const bool good = how.second.empty() ? alone || how.first == "job"
                                       : alone && absl::SimpleAtoi(how.second, &role->restart_limit) &&
                                             role->restart_limit >= 0;
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--restart '", text, "': expected ROLE=alone, ROLE=alone:LIMIT or ROLE=job"));
}

// Applies --ps-followers, --ps-min-copies and the cluster file's fields of the same meaning.
absl::Status SetFollowers(const RunFlags& flags, LaunchPlan* plan) {
  RolePlan* servers = nullptr;
  for (RolePlan& role : plan->roles) servers = role.name == "ps" && role.count > 0 ? &role : servers;
  if (servers == nullptr) {
    if (flags.ps_followers <= 0 && flags.ps_min_copies <= 1) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "--ps-followers and --ps-min-copies need parameter servers on this node; give --ps N, too");
  }
  if (flags.ps_followers >= 0) servers->followers = flags.ps_followers;
  if (flags.ps_min_copies >= 0) servers->min_copies = flags.ps_min_copies;
  TANDEM_RETURN_IF_ERROR(
      CheckFollowerFlags("--ps-", servers->followers, servers->min_copies, !flags.wal_dir.empty()));
  if (servers->followers == 0) return absl::OkStatus();
  if (!servers->command.empty()) {
    return absl::InvalidArgumentError(
        "--ps-followers is for the servers of Tandem, but the role 'ps' has a program of its own");
  }
  servers->restart = Restart::kAlone;
  return absl::OkStatus();
}

absl::StatusOr<int> WorkerCount(const RunFlags& flags) {
  if (flags.nproc_per_node.empty()) return flags.workers;
  TANDEM_ASSIGN_OR_RETURN(const int count, ProcessesPerNode(flags.nproc_per_node));
  if (flags.workers >= 0 && flags.workers != count) {
    return absl::InvalidArgumentError(absl::StrCat("--nproc-per-node ", flags.nproc_per_node,
                                                   " and --workers ", flags.workers,
                                                   " say different numbers of the same"));
  }
  return count;
}

absl::Status ReadFileInto(const std::string& path, LaunchPlan* plan) {
  const absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) return Annotate(text.status(), "the cluster file");
  return ReadClusterFile(*text, path, plan);
}

// Adds the roles of the --role flags to the plan. Returns the name that one of them gives the workers, or "".
absl::StatusOr<std::string> TakeRoles(const RunFlags& flags, LaunchPlan* plan) {
  std::string workers;
  for (const std::string& text : flags.roles) {
    if (absl::StrContains(text, '=')) {
      TANDEM_RETURN_IF_ERROR(AddRole(text, plan));
    } else if (!workers.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--role ", workers, " and --role ", text,
                       ": the workers have one name; more roles are NAME=COUNT"));
    } else {
      TANDEM_RETURN_IF_ERROR(Annotate(CheckRoleName(text), "--role"));
      workers = text;
    }
  }
  return workers;
}

// Returns the main role if it is not given: the workers, else the learners, else the first role that does not
// serve.
std::string MainRole(const LaunchPlan& plan) {
  for (const char* name : {kWorker, "learner"}) {
    if (plan.Count(name) > 0) return name;
  }
  for (const RolePlan& role : plan.roles) {
    if (!role.serves && role.count > 0) return role.name;
  }
  return kWorker;
}

}  // namespace

const RolePlan* LaunchPlan::Find(absl::string_view role) const {
  for (const RolePlan& one : roles) {
    if (one.name == role) return &one;
  }
  return nullptr;
}

bool LaunchPlan::IsReplaceable() const {
  return !reform && !roles.empty() && absl::c_all_of(roles, [this](const RolePlan& role) {
    const bool survives = role.name != "ps" || role.followers > 0;
    return (role.serves || role.name == main) && role.restart == Restart::kAlone && survives;
  });
}

bool LaunchPlan::HasWork() const {
  return absl::c_any_of(roles, [](const RolePlan& role) { return !role.serves && role.count > 0; });
}

int LaunchPlan::Count(absl::string_view role) const {
  const RolePlan* found = Find(role);
  return found == nullptr ? 0 : found->count;
}

absl::StatusOr<int> ProcessesPerNode(absl::string_view text) {
  int count = 0;
  if (absl::SimpleAtoi(text, &count) && count >= 0 && count <= kMostProcesses) return count;
  if (text == "cpu") return ProcessorsHere();
  const int gpus = GpusHere();
  if (text == "auto") return gpus > 0 ? gpus : ProcessorsHere();
  if (text == "gpu" && gpus > 0) return gpus;
  return absl::InvalidArgumentError(
      absl::StrCat("--nproc-per-node ", text,
                   text == "gpu" ? ": this machine has no GPU that CUDA_VISIBLE_DEVICES or /dev/nvidia* shows"
                                 : ": expected a number up to 4096, auto, gpu or cpu"));
}

absl::StatusOr<std::vector<std::string>> SplitCommand(absl::string_view text) {
  std::vector<std::string> words;
  std::string word;
  bool open = false;  // whether `word` has begun
  char quote = 0;
  for (const char c : text) {
    if (quote != 0 ? c == quote : c == '\'' || c == '"') {
      quote = quote != 0 ? 0 : c;
      open = true;
    } else if (quote == 0 && absl::ascii_isspace(c)) {
      if (open) words.push_back(std::move(word));
      word.clear();
      open = false;
    } else {
      word += c;
      open = true;
    }
  }
  if (quote != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the command `", text, "` opens a quote and does not close it"));
  }
  if (open) words.push_back(std::move(word));
  return words;
}

absl::StatusOr<std::vector<std::string>> ProgramCommand(const RunFlags& flags,
                                                        const std::vector<std::string>& words) {
  if (flags.module && flags.no_python) {
    return absl::InvalidArgumentError("--module and --no-python exclude each other");
  }
  const bool script = absl::EndsWith(words[0], ".py") && !flags.no_python;
  if (!flags.module && !flags.run_path && !script) return words;
  const char* python = std::getenv("PYTHON_EXEC");
  std::vector<std::string> command = {python != nullptr && *python != '\0' ? python : "python3", "-u"};
  if (flags.run_path) {
    command.insert(
        command.end(),
        {"-c",
         "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"});
  } else if (flags.module) {
    command.push_back("-m");
  }
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

absl::StatusOr<LaunchPlan> MakePlan(const RunFlags& flags, const std::vector<std::string>& program) {
  LaunchPlan plan;
  if (!flags.cluster.empty()) TANDEM_RETURN_IF_ERROR(ReadFileInto(flags.cluster, &plan));
  TANDEM_ASSIGN_OR_RETURN(const std::string workers, TakeRoles(flags, &plan));
  if (!workers.empty()) plan.main = workers;
  const std::pair<const char*, int> counts[] = {
      {"ps", flags.servers}, {"replay", flags.replay}, {"actor", flags.actors}, {"learner", flags.learners}};
  for (const auto& [name, count] : counts) {
    if (count >= 0) FindOrAdd(&plan, name).count = count;
  }
  TANDEM_ASSIGN_OR_RETURN(const int worker_count, WorkerCount(flags));
  const std::string worker_role = plan.main.empty() ? kWorker : plan.main;
  if (worker_count >= 0) {
    FindOrAdd(&plan, worker_role).count = worker_count;
  } else if (flags.cluster.empty() && flags.learners <= 0 && plan.Find(worker_role) == nullptr) {
    FindOrAdd(&plan, worker_role).count = 1;
  }
  if (plan.main.empty()) plan.main = MainRole(plan);
  if (flags.max_restarts >= 0) plan.max_restarts = flags.max_restarts;
  if (!flags.on_failure.empty()) plan.reform = flags.on_failure == "reform";
  if (!flags.wal_dir.empty()) {
    for (RolePlan& role : plan.roles) {
      if (role.name == "ps" && role.command.empty()) role.restart = Restart::kAlone;
    }
  }
  TANDEM_RETURN_IF_ERROR(SetFollowers(flags, &plan));
  for (const std::string& text : flags.restart) TANDEM_RETURN_IF_ERROR(SetRestart(text, &plan));
  for (const RolePlan& role : plan.roles) {
    if (role.followers == 0 || role.restart == Restart::kAlone) continue;
    return absl::InvalidArgumentError(
        "--restart ps=job and --ps-followers exclude each other: with the first the death of a follower ends "
        "the "
        "round, with the second no single death does");
  }

  std::vector<std::string> command;
  if (!program.empty()) {
    TANDEM_ASSIGN_OR_RETURN(command, ProgramCommand(flags, program));
  }
  std::erase_if(plan.roles, [](const RolePlan& role) { return role.count == 0; });
  std::stable_partition(plan.roles.begin(), plan.roles.end(),
                        [](const RolePlan& role) { return role.serves; });
  for (RolePlan& role : plan.roles) {
    if (flags.bind == "core" && role.bind == Bind::kNone) role.bind = Bind::kCore;
    if (flags.bind == "numa" && role.bind == Bind::kNone) role.bind = Bind::kNuma;
    if (!role.command.empty()) {
      // A script is run by Python, whichever way it is named.
      const std::vector<std::string> words = role.command;
      TANDEM_ASSIGN_OR_RETURN(role.command, ProgramCommand(RunFlags{.no_python = flags.no_python}, words));
      role.script = role.command == words ? "" : words[0];
    } else if (role.name != "ps") {
      role.command = command;
      role.script = command == program || flags.module ? "" : program[0];
    }
    if (role.command.empty() && role.name != "ps") {
      return absl::InvalidArgumentError(absl::StrCat("PROGRAM is missing, which role '", role.name,
                                                     "' needs: tandem run [OPTIONS] -- PROGRAM ..."));
    }
  }
  if (plan.roles.empty()) return absl::InvalidArgumentError("there is nothing to start: every count is 0");
  if (const RolePlan* servers = plan.Find("ps");
      plan.reform && servers != nullptr && servers->command.empty()) {
    return absl::InvalidArgumentError(
        "--on-failure reform and --ps exclude each other: parameter servers hear of no later round, and "
        "another number of nodes would be another number of servers. With --on-failure restart and `tandem "
        "train --resume auto` the job goes on from its newest checkpoint; servers that are to outlive rounds "
        "are started by hand, beside a `tandem store`");
  }
  if (const RolePlan* main = plan.Find(plan.main); main != nullptr && (main->serves || main->name == "ps")) {
    return absl::InvalidArgumentError(
        absl::StrCat("role '", plan.main, "' serves the others and cannot be the main role"));
  }
  return plan;
}

}  // namespace tandem::launcher
