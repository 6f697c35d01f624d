// `tandem train`: a job's worker, or the whole job in one process.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "cli/commands.h"
#include "cli/worker_session.h"
#include "worker/job/job_parser.h"
#include "worker/trainer/training_run.h"

namespace tandem::cli {
namespace {

struct Options {
  std::string job_file;
  std::string model;
  std::vector<std::string> set;
  std::string report;
  worker::RunOptions run;
  bool no_baselines = false;
  bool print_job = false;
};

// A terminal behind the launcher's pipe counts, too: the launcher says so.
bool OnTerminal() { return ::isatty(STDOUT_FILENO) == 1 || std::getenv("TANDEM_TERMINAL") != nullptr; }

int Train(Options options) {
  if (!options.model.empty()) options.set.push_back(absl::StrCat("model.kind=", options.model));
  const absl::StatusOr<worker::JobSpec> job = worker::LoadJob(options.job_file, options.set);
  if (!job.ok()) {
    LogError(job.status().message());
    return 2;
  }
  if (options.print_job) {
    std::fputs(worker::JobToYaml(*job).c_str(), stdout);
    return 0;
  }
  options.run.job_file = options.job_file;
  options.run.baselines = !options.no_baselines;
  options.run.terminal = OnTerminal();
  absl::StatusOr<std::unique_ptr<WorkerSession>> session = WorkerSession::Open(job->train.timeout);
  if (!session.ok()) {
    LogError(session.status().message());
    return 1;
  }
  const absl::StatusOr<worker::RunReport> report =
      worker::RunTraining(*job, options.run, {.client = (*session)->client(), .group = (*session)->group()});
  absl::Status result = report.status();
  if (report.ok() && (*session)->rank() == 0) {
    std::fputs(worker::FormatReport(*report).c_str(), stdout);
    if (!options.report.empty()) {
      result = worker::WriteReport(*report, options.report);
      if (result.ok()) std::printf("  %-34s %s\n", "report", options.report.c_str());
    }
    if (!report->checkpoint.empty()) {
      std::printf(
          "\nNext: go on training from the newest checkpoint, or look at what is there:\n"
          "  tandem run --ps %d --workers %d -- tandem train %s --resume latest --set train.epochs=%d\n"
          "  tandem ckpt ls %s\n",
          report->servers, report->workers, options.job_file.c_str(), job->train.epochs * 2,
          job->checkpoint.dir.c_str());
    }
    std::fflush(stdout);
  }
  return (*session)->Finish(result);
}

}  // namespace

void AddTrain(CLI::App& app, CommandContext* context) {
  auto options = std::make_shared<Options>();
  CLI::App* command = app.add_subcommand(
      "train", "Train a job: one worker's part under `tandem run`, or the whole job in this process");
  command->add_option("job", options->job_file, "The job file (YAML)")->required();
  command->add_option("--model", options->model,
                      "Another model than the job's: short for --set model.kind=...");
  command->add_option("--set", options->set, "Change a field of the job: dotted.path=value (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--resume", options->run.resume, "Go on from a checkpoint directory, or from 'latest'");
  command->add_option("--report", options->report, "Write every figure of the run to this JSON file");
  command->add_option("--predictions", options->run.predictions,
                      "Write 'label<TAB>probability' of every test example to this file");
  command->add_flag("--no-baselines", options->no_baselines,
                    "Do not train the plain baselines for the final table");
  command->add_flag("--print-job", options->print_job,
                    "Print the job with every default spelled out, and stop");
  command->callback([options, context] { context->exit_code = Train(*options); });
}

}  // namespace tandem::cli
