// SPDX-License-Identifier: Apache-2.0
// tandem rl: trains a reinforcement-learning job in this process; evaluates and plays saved models.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/local_path.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "cli/commands/commands.h"
#include "cli/commands/rl_roles.h"
#include "cli/commands/train_seeds.h"
#include "cluster/environment.h"
#include "cluster/process.h"
#include "nlohmann/json.hpp"
#include "rpc/security/security_flags.h"
#include "worker/job/job_parser.h"
#include "worker/nn/gemm.h"
#include "worker/rl/envs/vector_environment.h"
#include "worker/rl/job/rl_parser.h"
#include "worker/rl/run/evaluation.h"
#include "worker/rl/run/model_file.h"
#include "worker/rl/run/rl_run.h"

namespace tandem::cli {
namespace {

struct RlFlags {
  std::string job_file;
  std::vector<std::string> set;
  std::string report, tensorboard, seeds;
  int parallel = 1;
  bool print_job = false, resume = false;
  cluster::ListenOptions listen;
};

struct ModelFlags {
  std::string model;
  std::vector<std::string> set;
  int episodes = 0;
  int episode = 0;
  int64_t seed = -1;
  bool json = false;
};

// Returns `path` with "-seed-N" before its extension.
std::string WithSeed(const std::string& path, uint64_t seed) {
  const std::filesystem::path whole = path;
  return (whole.parent_path() /
          absl::StrCat(whole.stem().string(), "-seed-", seed, whole.extension().string()))
      .string();
}

// The runs that were started: their reports, and the first error of one that has none.
struct RlRuns {
  std::vector<rl::RlReport> reports;
  absl::Status failure;
};

// Runs the jobs on up to `parallel` threads, until `stop`. A run that fails does not end the others.
RlRuns RunAll(const std::vector<rl::RlSpec>& jobs, const RlFlags& flags, const std::atomic<bool>& stop) {
  const size_t threads = std::min(static_cast<size_t>(flags.parallel), jobs.size());
  std::vector<std::optional<absl::StatusOr<rl::RlReport>>> results(jobs.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < jobs.size() && !stop; i = next++) {
      std::string tensorboard = flags.tensorboard;
      if (!tensorboard.empty() && jobs.size() > 1)
        absl::StrAppend(&tensorboard, "/seed-", jobs[i].learner.seeds.environment);
      results[i] = rl::RunRl(jobs[i], {.silent = threads > 1,
                                       .terminal = ::isatty(STDOUT_FILENO) == 1,
                                       .tensorboard = tensorboard,
                                       .stop = &stop,
                                       .resume = flags.resume,
                                       .refuse_finished = jobs.size() == 1});
      if (jobs.size() == 1 || !results[i]->ok()) continue;
      const rl::RlReport& report = **results[i];
      if (report.evaluation.returns.empty()) continue;
      std::printf("seed %llu: %.2f\n", static_cast<unsigned long long>(report.seed), report.evaluation.mean);
      std::fflush(stdout);
    }
  };
  std::vector<std::thread> pool;
  for (size_t t = 1; t < threads; ++t) pool.emplace_back(work);
  work();
  for (std::thread& thread : pool) thread.join();
  RlRuns runs;
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (!results[i].has_value()) continue;  // the run was not started any more
    absl::Status failure = results[i]->ok() ? (*results[i])->failure : results[i]->status();
    if (!failure.ok() && jobs.size() > 1)
      failure = Annotate(failure, absl::StrCat("seed ", jobs[i].learner.seeds.environment));
    if (!failure.ok() && !runs.failure.ok()) LogError(failure.message());
    runs.failure.Update(failure);
    if (results[i]->ok()) runs.reports.push_back(**std::move(results[i]));
  }
  return runs;
}

int RunJob(const RlFlags& flags) {
  if (flags.job_file.empty()) {
    LogError("tandem rl needs a job file, or one of its commands eval and play; see tandem rl --help");
    return kUsageError;
  }
  const absl::StatusOr<rl::RlSpec> job = rl::LoadRlJob(flags.job_file, flags.set);
  if (!job.ok()) {
    if (worker::LoadJob(flags.job_file).ok()) {
      LogError(absl::StrCat("'", flags.job_file, "' is no job of reinforcement learning: run `tandem train ",
                            flags.job_file, "`"));
    } else {
      LogError(job.status().message());
    }
    return kUsageError;
  }
  if (flags.print_job) {
    std::fputs(rl::RlJobToYaml(*job).c_str(), stdout);
    return 0;
  }
  if (cluster::Environment::IsLaunched()) {
    if (!flags.seeds.empty()) {
      LogError("--seeds trains in this process alone; run it without `tandem run`");
      return kUsageError;
    }
    std::atomic<bool> stop{false};
    return RunRlRole(*job, {.run = {.terminal = ::isatty(STDOUT_FILENO) == 1,
                                    .tensorboard = flags.tensorboard,
                                    .stop = &stop,
                                    .resume = flags.resume},
                            .stop = &stop,
                            .report = flags.report,
                            .listen = flags.listen});
  }
  if (job->remote_inference) {
    LogError(
        "the job's actors.inference is 'server', which needs processes of role inference: tandem run "
        "--learners 1 --replay 1 --actors 4 --role inference=1 -- tandem rl JOB.yaml");
    return kUsageError;
  }
  std::vector<rl::RlSpec> jobs = {*job};
  if (!flags.seeds.empty()) {
    const absl::StatusOr<std::vector<uint64_t>> seeds = ParseSeeds(flags.seeds);
    if (!seeds.ok()) {
      LogError(seeds.status().message());
      return kUsageError;
    }
    jobs.clear();
    for (const uint64_t seed : *seeds) {
      if (seed > rl::kGreatestSeed) {
        LogError(absl::StrCat("--seeds: ", seed, " is greater than ", rl::kGreatestSeed));
        return kUsageError;
      }
      jobs.push_back(*job);
      jobs.back().learner.seeds = {.environment = seed, .policy = seed, .evaluation = seed};
      jobs.back().model_file = WithSeed(job->model_file, seed);
      jobs.back().checkpoint_file = WithSeed(job->checkpoint_file, seed);
    }
  }
  if (!flags.report.empty()) {
    const absl::Status writable = rl::CheckWritable(flags.report);
    if (!writable.ok()) return Report("rl", Annotate(writable, "--report"));
  }
  std::atomic<bool> stop{false};
  const absl::StatusOr<std::unique_ptr<cluster::Process>> process =
      cluster::Process::Start({.exit_code = kRlAskedToStop});
  if (!process.ok()) return Report("rl", process.status());
  (*process)->StopOnSignals(&stop);
  const RlRuns runs = RunAll(jobs, flags, stop);
  absl::Status status = runs.failure;
  if (!runs.reports.empty()) {
    std::fputs(rl::FormatRlReport(runs.reports, jobs.size()).c_str(), stdout);
    if (!flags.report.empty()) status.Update(rl::WriteRlReport(runs.reports, jobs.size(), flags.report));
  }
  bool stopped = status.ok() && runs.reports.size() < jobs.size();
  for (const rl::RlReport& report : runs.reports) stopped = stopped || report.interrupted;
  if (jobs.size() == 1 && status.ok()) {
    std::printf(
        "\nNext: evaluate the model on other episodes, or watch one:\n  tandem rl eval %s --seed %llu\n  "
        "tandem "
        "rl play %s\n",
        job->model_file.c_str(), static_cast<unsigned long long>(job->learner.seeds.evaluation + 1),
        job->model_file.c_str());
  }
  if (stopped)
    LogInfo(
        "stopped on request; the models of the runs so far are saved, but not all evaluated; --resume goes "
        "on");
  const int code = Report("rl", status);
  return code == 0 && stopped ? kRlAskedToStop : code;
}

// Loads the model and applies the overrides of the flags to its job.
absl::StatusOr<rl::LoadedPolicy> Load(const ModelFlags& flags) {
  worker::UseOneBlasThread();
  TANDEM_ASSIGN_OR_RETURN(rl::LoadedPolicy loaded, rl::LoadModel(flags.model));
  TANDEM_ASSIGN_OR_RETURN(loaded.job, rl::ParseRlJob(rl::RlJobToYaml(loaded.job), flags.model, flags.set));
  if (flags.seed >= 0) loaded.job.learner.seeds.evaluation = static_cast<uint64_t>(flags.seed);
  return loaded;
}

absl::Status Eval(const ModelFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(rl::LoadedPolicy loaded, Load(flags));
  const rl::LearnerOptions& learner = loaded.job.learner;
  const int episodes = flags.episodes > 0 ? flags.episodes : std::max(1, loaded.job.evaluation_episodes);
  TANDEM_ASSIGN_OR_RETURN(const rl::Evaluation evaluation,
                          rl::Evaluate(*loaded.policy, learner.environment, static_cast<size_t>(episodes),
                                       learner.seeds.evaluation));
  if (flags.json) {
    const nlohmann::ordered_json json = {{"model", flags.model},
                                         {"job", loaded.job.name},
                                         {"environment", learner.environment.kind},
                                         {"algorithm", learner.algorithm.kind},
                                         {"seed", learner.seeds.evaluation},
                                         {"episodes", episodes},
                                         {"mean", evaluation.mean},
                                         {"deviation", evaluation.deviation},
                                         {"min", evaluation.least},
                                         {"max", evaluation.greatest},
                                         {"mean_length", evaluation.mean_length},
                                         {"returns", evaluation.returns}};
    std::printf("%s\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return absl::OkStatus();
  }
  std::printf("%s: %s by %s on %s\n", flags.model.c_str(), loaded.job.name.c_str(),
              learner.algorithm.kind.c_str(), learner.environment.kind.c_str());
  std::printf("  %-16s %d, seed %llu\n", "episodes", episodes,
              static_cast<unsigned long long>(learner.seeds.evaluation));
  std::printf("  %-16s %.2f +- %.2f (%.2f to %.2f)\n", "return", evaluation.mean, evaluation.deviation,
              evaluation.least, evaluation.greatest);
  std::printf("  %-16s %.1f steps\n", "mean length", evaluation.mean_length);
  return absl::OkStatus();
}

// Prints one of the episodes that Eval counts, a line a step: number, observation, action, reward.
absl::Status Play(const ModelFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(rl::LoadedPolicy loaded, Load(flags));
  const rl::LearnerOptions& learner = loaded.job.learner;
  const auto index = static_cast<size_t>(flags.episode);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<rl::VectorEnvironment> environment,
                          rl::VectorEnvironment::Create(learner.environment, index + 1,
                                                        rl::EvaluationSeed(learner.seeds.evaluation)));
  TANDEM_RETURN_IF_ERROR(rl::CheckEnvironment(*loaded.policy, learner.environment.kind, environment->spec()));
  const size_t observation_size = environment->spec().observation_size;
  const auto action_size = static_cast<size_t>(environment->spec().actions.dimensions);
  std::vector<float> actions(action_size * (index + 1));
  for (int64_t step = 1; learner.environment.max_steps > 0 || step <= rl::kMostSteps; ++step) {
    const std::vector<float> seen(environment->observations().begin(), environment->observations().end());
    loaded.policy->ActGreedily(seen, index + 1, absl::MakeSpan(actions));
    TANDEM_RETURN_IF_ERROR(environment->Step(actions));
    const auto own = [index](const std::vector<float>& values, size_t width) {
      return absl::StrJoin(absl::MakeConstSpan(values).subspan(index * width, width), " ");
    };
    std::printf("%6lld  [%s]  action %s  reward %g\n", static_cast<long long>(step),
                own(seen, observation_size).c_str(), own(actions, action_size).c_str(),
                static_cast<double>(environment->rewards()[index]));
    for (const rl::Episode& episode : environment->ended()) {
      if (episode.environment != index) continue;
      std::printf("%s after %lld steps; return %g\n",
                  environment->terminated()[index] != 0 ? "terminated" : "truncated",
                  static_cast<long long>(step), episode.episode_return);
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("the episode has not ended after ", rl::kMostSteps,
                   " steps, and env.max_steps is 0: give a limit, for example --set env.max_steps=1000"));
}

void AddModelFlags(CLI::App* command, ModelFlags* flags) {
  LocalPath(
      command->add_option("MODEL", flags->model, "The file that `tandem rl` has saved (model.safetensors)"))
      ->required();
  command
      ->add_option("--set", flags->set, "Change a field of the model's job: dotted.path=value (repeatable)")
      ->allow_extra_args(false);
  command->add_option("--seed", flags->seed, "Seed of the environments [the job's seed.evaluation]")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000'000'000'000}));
}

}  // namespace

void AddRl(CLI::App& app, CommandContext* context) {
  auto flags = std::make_shared<RlFlags>();
  auto eval = std::make_shared<ModelFlags>();
  auto play = std::make_shared<ModelFlags>();
  CLI::App* command = app.add_subcommand("rl", "Train a reinforcement-learning job, or use a saved model");
  LocalPath(command->add_option("job", flags->job_file, "The job file (YAML)"));
  rpc::AddSecurityFlags(command);
  command->add_option("--set", flags->set, "Change a field of the job: dotted.path=value (repeatable)")
      ->allow_extra_args(false);
  LocalPath(
      command->add_option("--report", flags->report, "Write every figure of the run to this JSON file"));
  LocalPath(command->add_option("--tensorboard", flags->tensorboard,
                                "Write scalars for TensorBoard to this directory"));
  command->add_option(
      "--seeds", flags->seeds,
      "Train once for each of these seeds (1-5, or 1,3,7) and report the mean of the evaluations");
  command->add_option("--parallel", flags->parallel, "With --seeds: runs at the same time, one thread each")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_flag("--resume", flags->resume,
                    "Go on from the job's checkpoint (checkpoint.file), if there is one");
  CLI::Option* const listen = command->add_option("--listen", flags->listen.listen,
                                                  "host:port to bind, for roles that serve, in machines "
                                                  "whose address changes when they start again [picked]");
  command
      ->add_option("--advertise", flags->listen.advertise,
                   "HOST or HOST:PORT under which others reach it [that of --listen]")
      ->needs(listen);
  command->add_flag("--print-job", flags->print_job,
                    "Print the job with every default spelled out, and stop");
  CLI::App* eval_command =
      command->add_subcommand("eval", "Run fresh episodes of a saved model's greedy policy");
  AddModelFlags(eval_command, eval.get());
  eval_command->add_option("--episodes", eval->episodes, "Number of episodes [the job's evaluation.episodes]")
      ->check(CLI::Range(1, 65536));
  eval_command->add_flag("--json", eval->json, "Print one JSON object");
  CLI::App* play_command =
      command->add_subcommand("play", "Print one episode of a saved model, step by step");
  AddModelFlags(play_command, play.get());
  play_command->add_option("--episode", play->episode, "Which of the episodes that `eval` runs, from 0")
      ->check(CLI::Range(0, 65535))
      ->capture_default_str();
  command->require_subcommand(0, 1);
  eval_command->callback([eval, context] { context->exit_code = Report("rl eval", Eval(*eval)); });
  play_command->callback([play, context] { context->exit_code = Report("rl play", Play(*play)); });
  command->callback([command, flags, context] {
    if (command->get_subcommands().empty()) context->exit_code = RunJob(*flags);
  });
}

}  // namespace tandem::cli
