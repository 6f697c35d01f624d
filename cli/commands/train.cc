// SPDX-License-Identifier: Apache-2.0
// tandem train: runs a job's worker, or the whole job in one process.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/local_path.h"
#include "base/logging.h"
#include "base/process/own_launcher.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/train_seeds.h"
#include "cluster/process.h"
#include "launcher/process/spawn.h"
#include "rpc/security/security_flags.h"
#include "worker/job/job_parser.h"
#include "worker/trainer/training_run.h"
#include "worker/trainer/worker_session.h"

namespace tandem::cli {
namespace {

// The exit code of a run that was asked to stop and has saved its state: EX_TEMPFAIL of sysexits.h, by which
// schedulers know that the job is to be started again.
constexpr int kInterrupted = 75;

struct Options {
  std::string job_file;
  std::string model;
  std::vector<std::string> set;
  std::string report;
  worker::RunOptions run;
  bool no_baselines = false;
  bool print_job = false;
  std::string seeds;
  int servers = 0, workers = 0;  // of the job of each seed
  std::string spill_dir;
};

// Returns whether stdout ends at a terminal. Under `tandem run` stdout is a pipe, and the launcher sets
// TANDEM_TERMINAL if it shows the output on a terminal.
bool OnTerminal() { return ::isatty(STDOUT_FILENO) == 1 || std::getenv("TANDEM_TERMINAL") != nullptr; }

// Returns `word`, quoted if necessary, so that a shell reads it as one word.
std::string Quoted(const std::string& word) {
  constexpr absl::string_view kPlain = "%+,-./:=@_";
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [&](unsigned char c) {
    return absl::ascii_isalnum(c) || absl::StrContains(kPlain, c);
  });
  return plain ? word : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

// Returns the command that runs this program: its name if it is in PATH, else its path, relative if the
// program is below the current directory.
std::string OwnName() {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path self = fs::read_symlink("/proc/self/exe", error);
  const absl::StatusOr<std::string> in_path = launcher::FindProgram("tandem");
  if (error || (in_path.ok() && fs::equivalent(*in_path, self, error))) return "tandem";
  const fs::path near = fs::proximate(self, error);
  if (error || near.empty() || *near.begin() == "..") return self.string();
  return near.has_parent_path() ? near.string() : "./" + near.string();
}

// Returns the command lines that continue this run or look at its checkpoints, with this program and the
// run's overrides.
std::string NextSteps(const Options& options, const worker::JobSpec& job, const worker::RunReport& report) {
  const std::string self = OwnName();
  const std::string look =
      absl::StrCat("  ", Quoted(self), " eval ", Quoted(job.checkpoint.dir), " --data FILE\n  ", Quoted(self),
                   " ckpt ls ", Quoted(job.checkpoint.dir), "\n");
  // A run that continued one which has stopped early would stop again at once.
  if (report.stopped_early) {
    return absl::StrCat("\nNext: score other data with this model, or look at its checkpoints:\n", look);
  }
  std::string train = absl::StrCat("tandem train ", Quoted(options.job_file));
  for (const std::string& set : options.set) {
    if (!absl::StartsWith(set, "train.epochs=")) absl::StrAppend(&train, " --set ", Quoted(set));
  }
  absl::StrAppend(&train, " --set train.epochs=", job.train.epochs * 2, " --resume latest");
  const char* const followers = std::getenv("TANDEM_PS_FOLLOWERS");
  return absl::StrCat(
      "\nNext: score other data with this model, look at its checkpoints, or, if the valid AUC still rises, "
      "train for more epochs:\n",
      look, "  ", Quoted(self), " run --ps ", report.servers,
      followers == nullptr ? "" : absl::StrCat(" --ps-followers ", followers), " --workers ", report.workers,
      " -- ", train, "\n");
}

// Returns an error unless a file can be created at `path`, so that the user learns of it before hours of
// training.
absl::Status CheckWritable(const char* flag, const std::string& path) {
  namespace fs = std::filesystem;
  if (path.empty()) return absl::OkStatus();
  const std::string parent = fs::path(path).parent_path().string();
  std::error_code error;
  const char* wrong = nullptr;
  if (fs::is_directory(path, error)) {
    wrong = "it is a directory";
  } else if (!fs::is_directory(parent.empty() ? "." : parent, error)) {
    wrong = "there is no such directory";
  } else if (::access(parent.empty() ? "." : parent.c_str(), W_OK) != 0) {
    wrong = std::strerror(errno);
  } else {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(flag, " ", path, " cannot be written: ", wrong));
}

absl::Status CheckOutputs(const Options& options, const worker::JobSpec& job) {
  TANDEM_RETURN_IF_ERROR(CheckWritable("--report", options.report));
  TANDEM_RETURN_IF_ERROR(CheckWritable("--predictions", options.run.predictions));
  std::error_code error;
  std::filesystem::create_directories(job.checkpoint.dir, error);
  if (!error && ::access(job.checkpoint.dir.c_str(), W_OK) != 0) error.assign(errno, std::generic_category());
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("checkpoints cannot be written to '", job.checkpoint.dir,
                                                 "': ", error.message(),
                                                 "; choose another with --set checkpoint.dir=DIR"));
}

// Returns the runs of --seeds.
absl::StatusOr<SeedRuns> RunsOf(const Options& options, const worker::JobSpec& job) {
  for (const char* variable : {"RANK", "WORLD_SIZE", "TANDEM_ROLE", "TANDEM_STORE"}) {
    if (std::getenv(variable) == nullptr) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "--seeds starts a job for each seed, but this process is part of a job (", variable,
        " is set); instead of `tandem run --ps N --workers M -- tandem train ... --seeds ...` write `tandem "
        "train ... --seeds ... --ps N --workers M`"));
  }
  const std::string& resume = options.run.resume;
  if (!resume.empty() && resume != "latest" && resume != "auto") {
    return absl::InvalidArgumentError(
        "--resume with --seeds must be latest or auto: every seed has its own checkpoints");
  }
  SeedRuns runs{.job_file = options.job_file,
                .job_name = job.name,
                .overrides = options.set,
                .checkpoint_dir = job.checkpoint.dir,
                .report = options.report,
                .predictions = options.run.predictions,
                .baselines = !options.no_baselines};
  TANDEM_ASSIGN_OR_RETURN(runs.seeds, ParseSeeds(options.seeds));
  TANDEM_RETURN_IF_ERROR(CheckWritable("--report", options.report));
  if (options.servers > 0 || options.workers > 0) {
    runs.servers = std::max(1, options.servers);
    runs.workers = std::max(1, options.workers);
  }
  const auto pass = [&](const char* flag, const std::string& value) {
    if (!value.empty()) runs.more_flags.insert(runs.more_flags.end(), {flag, value});
  };
  pass("--resume", resume);
  pass("--spill-dir", options.spill_dir);
  pass("--tensorboard", options.run.tensorboard);
  if (options.run.overwrite) runs.more_flags.push_back("--overwrite");
  if (options.run.data_changed) runs.more_flags.push_back("--data-changed");
  return runs;
}

int Train(Options options) {
  if (!options.model.empty()) options.set.push_back(absl::StrCat("model.kind=", options.model));
  const absl::StatusOr<worker::JobSpec> job = worker::LoadJob(options.job_file, options.set);
  if (!job.ok()) {
    if (worker::IsRlJob(options.job_file)) {
      LogError(absl::StrCat("'", options.job_file, "' is a job of reinforcement learning: run `tandem rl ",
                            options.job_file, "`"));
    } else {
      LogError(job.status().message());
    }
    return 2;
  }
  if (options.print_job) {
    std::fputs(worker::JobToYaml(*job).c_str(), stdout);
    return 0;
  }
  if (!options.seeds.empty()) {
    const absl::StatusOr<SeedRuns> runs = RunsOf(options, *job);
    if (runs.ok()) return TrainSeeds(*runs);
    LogError(runs.status().message());
    return 2;
  }
  options.run.job_file = options.job_file;
  options.run.baselines = !options.no_baselines;
  options.run.terminal = OnTerminal();
  std::atomic<bool> stop{false};
  const absl::StatusOr<std::unique_ptr<cluster::Process>> process =
      cluster::Process::Start({.exit_code = kInterrupted});
  if (!process.ok()) {
    LogError(process.status().message());
    return 1;
  }
  absl::StatusOr<std::unique_ptr<worker::WorkerSession>> session = worker::WorkerSession::Open(
      {.timeout = job->train.timeout,
       .checkpoint_timeout = job->checkpoint.timeout,
       .spill_dir =
           options.spill_dir.empty() ? absl::StrCat(job->checkpoint.dir, "/spill") : options.spill_dir,
       .durability = job->ps.durability,
       .stop = &stop,
       .process = process->get()});
  if (!session.ok()) {
    LogError(session.status().message());
    return 1;
  }
  if ((*session)->rank() == 0) {
    if (const absl::Status writable = CheckOutputs(options, *job); !writable.ok())
      return (*session)->Finish(writable);
  }
  (*process)->StopOnSignals(&stop, "saves a checkpoint and ends; Ctrl-C again ends it at once");
  const absl::StatusOr<worker::RunReport> report = worker::RunTraining(*job, options.run,
                                                                       {.client = (*session)->client(),
                                                                        .group = (*session)->group(),
                                                                        .status = (*session)->status(),
                                                                        .stop = &stop});
  absl::Status result = report.status();
  if (IsRefusal(result)) {
    return (*session)->Refuse(result, std::getenv(kProcessVariable) != nullptr);
  }
  if (report.ok() && report->interrupted) {
    if ((*session)->rank() == 0) {
      LogInfo(absl::StrCat("stopped on request; ", report->checkpoint,
                           " has the state, continue with --resume ", "latest"));
    }
    const int code = (*session)->Finish(absl::OkStatus());
    return code == 0 ? kInterrupted : code;
  }
  if (report.ok() && (*session)->rank() == 0) {
    std::fputs(worker::FormatReport(*report).c_str(), stdout);
    if (!options.report.empty()) {
      result = worker::WriteReport(*report, options.report);
      if (result.ok()) std::printf("  %-34s %s\n", "report", options.report.c_str());
    }
    if (!report->checkpoint.empty()) {
      std::fputs(NextSteps(options, *job, *report).c_str(), stdout);
    }
    std::fflush(stdout);
    if (result.ok() && !report->save_error.empty()) {
      result = absl::DataLossError(
          absl::StrCat("training has finished, but its last checkpoint was not saved: ", report->save_error));
    }
  }
  return (*session)->Finish(result);
}

}  // namespace

void AddTrain(CLI::App& app, CommandContext* context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train", "Train a job: one worker's part under `tandem run`, or the whole job in this process");
  LocalPath(command->add_option("job", options->job_file, "The job file (YAML)"))->required();
  command->add_option("--model", options->model,
                      "Another model than the job's: short for --set model.kind=...");
  rpc::AddSecurityFlags(command);
  command->add_option("--set", options->set, "Change a field of the job: dotted.path=value (repeatable)")
      ->allow_extra_args(false);
  CLI::Option* resume = LocalPath(command->add_option(
      "--resume", options->run.resume,
      "Go on from a checkpoint directory, from 'latest', or with 'auto' from the latest if there is one"));
  command
      ->add_flag(
          "--data-changed", options->run.data_changed,
          "With --resume: the data may be other than the checkpoint's; then epochs, position and the best "
          "model start anew")
      ->needs(resume);
  command->add_flag("--overwrite", options->run.overwrite,
                    "Remove checkpoints in checkpoint.dir that this run does not continue, once it has saved "
                    "its first one, "
                    "instead of refusing to start");
  LocalPath(
      command->add_option("--report", options->report, "Write every figure of the run to this JSON file"));
  LocalPath(command->add_option("--predictions", options->run.predictions,
                                "Write 'label<TAB>probability' of every test example to this file"));
  LocalPath(command->add_option(
      "--spill-dir", options->spill_dir,
      "Without `tandem run`: where rows of tables with `spill` go that do not fit the memory; "
      "removed at the end [checkpoint.dir/spill]"));
  LocalPath(
      command->add_option("--tensorboard", options->run.tensorboard,
                          "Write scalars for TensorBoard below this directory: DIR/worker-0, DIR/ps-0, ..."));
  command->add_flag("--no-baselines", options->no_baselines,
                    "Do not train the plain baselines for the final table");
  CLI::Option* seeds = command->add_option("--seeds", options->seeds,
                                           "Train once for each of these seeds (1-5, or 1,3,7) and report "
                                           "mean and deviation; not under `tandem run`");
  command->add_option("--ps", options->servers, "With --seeds: parameter servers of each run")
      ->check(CLI::Range(1, 4096))
      ->needs(seeds);
  command
      ->add_option(
          "--workers", options->workers,
          "With --seeds: workers of each run; without --ps and --workers one process is the whole job")
      ->check(CLI::Range(1, 4096))
      ->needs(seeds);
  command->add_flag("--print-job", options->print_job,
                    "Print the job with every default spelled out, and stop");
  command->callback([options, context] { context->exit_code = Train(*options); });
}

}  // namespace tandem::cli
