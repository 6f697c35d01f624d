// SPDX-License-Identifier: Apache-2.0
// `tandem bench train`: measures the whole trainer, with a model on generated batches and its own worker and
// server processes, and shows the time of each stage of a step.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/config_field.h"
#include "base/json.h"
#include "base/logging.h"
#include "base/number_flag.h"
#include "base/own_program.h"
#include "base/read_file.h"
#include "base/status.h"
#include "bench/suites/commands.h"
#include "ps/table.h"
#include "worker/nn/gemm.h"
#include "worker/report/report_json.h"
#include "worker/step/hybrid_trainer.h"
#include "worker/synthetic/synthetic.h"
#include "worker/trainer/training_plan.h"
#include "worker/trainer/worker_session.h"

namespace tandem::bench {
namespace {

using Json = nlohmann::ordered_json;

struct TrainBench {
  std::string model = "dlrm", optimizer = "adagrad", mode = "async";
  int workers = 1, servers = 1;
  size_t batch = 1024;
  int dim = 16, sparse = 26, dense = 13;
  uint64_t rows = 100000;
  double zipf = 1.05;
  int steps = 40, repeats = 7, warmup = 20;
  int lookahead = 4, max_in_flight = 8;
  bool json = false;
  std::string result_file;  // set in the workers: the file into which rank 0 writes its results
};

absl::StatusOr<v1::OptimizerConfig> TableOptimizer(const std::string& kind) {
  if (kind == "sgd") return ps::Sgd(0.01f);
  if (kind == "adagrad") return ps::Adagrad(0.01f);
  if (kind == "adam") return ps::Adam(0.001f);
  return absl::InvalidArgumentError(
      absl::StrCat("--optimizer is '", kind, "'; it must be sgd, adagrad or adam"));
}

absl::StatusOr<v1::UpdateMode> Mode(const std::string& mode) {
  if (mode == "async") return ps::Async();
  if (mode == "sync") return ps::Sync();
  return absl::InvalidArgumentError(absl::StrCat("--mode is '", mode, "'; it must be async or sync"));
}

absl::StatusOr<Json> Measure(const TrainBench& options, worker::WorkerSession* session) {
  worker::UseOneBlasThread();
  worker::JobSpec job;
  TANDEM_ASSIGN_OR_RETURN(job.embedding.optimizer, TableOptimizer(options.optimizer));
  job.wide.optimizer = job.embedding.optimizer;
  TANDEM_ASSIGN_OR_RETURN(job.train.mode, Mode(options.mode));
  job.optimizer.kind = options.optimizer;
  job.model.kind = options.model;
  job.model.dim = options.dim;
  job.model.num_dense = options.dense;
  job.model.num_sparse = options.sparse;
  job.model.hidden = {64};
  job.model.bottom = {64};
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<worker::Model> model, worker::CreateModel(job.model));
  worker::Schema schema;
  schema.sparse.resize(options.sparse);
  TANDEM_ASSIGN_OR_RETURN(worker::TrainingPlan plan,
                          worker::PlanJob(job, schema, *model, session->world_size()));
  for (const v1::TableConfig& table : plan.tables)
    TANDEM_RETURN_IF_ERROR(session->client()->CreateTable(table));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<worker::DenseOptimizer> optimizer,
                          worker::DenseOptimizer::Create(job.optimizer, model->blocks()));
  const double learning_rate = options.optimizer == "adam" ? 0.001 : 0.01;
  worker::HybridTrainer trainer(session->client(), session->group(), model.get(), optimizer.get(),
                                plan.lookup,
                                {.lookahead = options.lookahead,
                                 .max_in_flight = options.max_in_flight,
                                 .learning_rate = [learning_rate](uint64_t) { return learning_rate; }});
  auto pass = [&](int steps) -> absl::StatusOr<worker::PassStats> {
    const std::unique_ptr<worker::BatchReader> reader =
        worker::MakeSyntheticReader({.num_sparse = options.sparse,
                                     .num_dense = options.dense,
                                     .vocabulary = options.rows,
                                     .zipf_exponent = options.zipf,
                                     .batch_size = options.batch,
                                     .batches = static_cast<uint64_t>(steps),
                                     .seed = static_cast<uint64_t>(session->rank()) + 1});
    TANDEM_RETURN_IF_ERROR(session->group()->Barrier().status());
    TANDEM_ASSIGN_OR_RETURN(worker::PassStats stats, trainer.Train(reader.get()));
    double slowest[] = {stats.seconds};
    TANDEM_RETURN_IF_ERROR(
        session->group()->AllReduce(absl::MakeSpan(slowest), {.op = collectives::ReduceOp::kMax}).status());
    stats.seconds = slowest[0];
    return stats;
  };
  TANDEM_RETURN_IF_ERROR(pass(options.warmup).status());
  std::vector<worker::PassStats> passes;
  for (int i = 0; i < options.repeats; ++i) {
    TANDEM_ASSIGN_OR_RETURN(worker::PassStats stats, pass(options.steps));
    passes.push_back(stats);
  }
  std::sort(passes.begin(), passes.end(),
            [](const worker::PassStats& a, const worker::PassStats& b) { return a.seconds < b.seconds; });
  const worker::PassStats& median = passes[passes.size() / 2];
  const double examples = static_cast<double>(options.batch) * options.steps * session->world_size();
  auto rate = [&](const worker::PassStats& stats) { return examples / stats.seconds; };
  auto ms = [&](double seconds) { return seconds * 1e3 / options.steps; };
  Json result = {{"model", options.model},
                 {"optimizer", options.optimizer},
                 {"mode", options.mode},
                 {"workers", options.workers},
                 {"servers", options.servers},
                 {"batch", options.batch},
                 {"samples_per_s", rate(median)},
                 {"samples_per_s_min", rate(passes.back())},
                 {"samples_per_s_max", rate(passes.front())},
                 {"ms_per_step", ms(median.seconds)}};
  result["ms"] = worker::StagesToJson(median.times, static_cast<uint64_t>(options.steps));
  result["ids_per_step"] = median.ids / static_cast<uint64_t>(options.steps);
  result["unique_ids_per_step"] = median.unique_ids / static_cast<uint64_t>(options.steps);
  return result;
}

int RunWorker(const TrainBench& options) {
  absl::StatusOr<std::unique_ptr<worker::WorkerSession>> session = worker::WorkerSession::Open({});
  if (!session.ok()) {
    LogError(session.status().message());
    return 1;
  }
  const absl::StatusOr<Json> result = Measure(options, session->get());
  absl::Status status = result.status();
  if (result.ok() && (*session)->rank() == 0) {
    std::ofstream out(options.result_file);
    out << result->dump() << "\n";
    out.close();
    if (!out) status = absl::UnavailableError(absl::StrCat("cannot write '", options.result_file, "'"));
  }
  return (*session)->Finish(status);
}

void PrintTable(const Json& result) {
  std::printf("%s, %s, %s: %d worker(s), %d server(s), batch %d each\n",
              result["model"].get<std::string>().c_str(), result["optimizer"].get<std::string>().c_str(),
              result["mode"].get<std::string>().c_str(), result["workers"].get<int>(),
              result["servers"].get<int>(), result["batch"].get<int>());
  std::printf("  samples/s  %.0f  (min %.0f, max %.0f)\n", result["samples_per_s"].get<double>(),
              result["samples_per_s_min"].get<double>(), result["samples_per_s_max"].get<double>());
  std::printf("  ids per step  %d, distinct %d\n", result["ids_per_step"].get<int>(),
              result["unique_ids_per_step"].get<int>());
  std::printf("  milliseconds per step  %.3f; on the computing thread, and beside it:\n",
              result["ms_per_step"].get<double>());
  for (const auto& [stage, ms] : result["ms"].items())
    std::printf("    %-18s %8.3f\n", stage.c_str(), ms.get<double>());
}

// Starts this command again under `tandem run` and shows the results of its rank 0.
int RunJob(const TrainBench& options, std::vector<std::string> worker_args) {
  char result_file[] = "/tmp/tandem-bench-XXXXXX";
  const int fd = ::mkstemp(result_file);
  if (fd < 0) {
    LogError(absl::StrCat("cannot make a temporary file in /tmp: ", std::strerror(errno)));
    return 1;
  }
  ::close(fd);
  const absl::StatusOr<std::string> tandem = ProgramBeside("tandem");
  if (!tandem.ok()) return Report("bench train", tandem.status());
  std::vector<std::string> args = {*tandem,
                                   "run",
                                   "--ps",
                                   absl::StrCat(options.servers),
                                   "--workers",
                                   absl::StrCat(options.workers),
                                   "--",
                                   *tandem,
                                   "bench",
                                   "train",
                                   "--result-file",
                                   result_file};
  args.insert(args.end(), worker_args.begin(), worker_args.end());
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> argv;
    for (std::string& arg : args) argv.push_back(arg.data());
    argv.push_back(nullptr);
    ::dup2(STDERR_FILENO, STDOUT_FILENO);  // only results go to stdout
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  int status = 0;
  while (child > 0 && ::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const Json result = ParseOrderedJson(ReadFile(result_file).value_or(""));
  ::unlink(result_file);
  if (child < 0 || status != 0 || result.is_discarded()) {
    LogError("the benchmark's job failed; its log is above");
    return 1;
  }
  if (options.json) {
    std::printf("%s\n", result.dump().c_str());
  } else {
    PrintTable(result);
  }
  return 0;
}

}  // namespace

void AddBench(CLI::App& app, CommandContext* context) {
  CLI::App* bench = app.add_subcommand("bench", "Measure this machine");
  bench->require_subcommand(1);
  AddBenchCollectives(bench, context);
  AddBenchCheckpoint(bench, context);
  AddBenchInference(bench, context);
  AddBenchPs(bench, context);
  AddBenchRows(bench, context);
  AddBenchReplay(bench, context);
  AddBenchRpc(bench, context);
  AddBenchSubscription(bench, context);
  AddBenchWeights(bench, context);
  auto options = std::make_shared<TrainBench>();
  CLI::App* command = bench->add_subcommand("train", "Train on generated batches, in processes of its own");
  // All flags that a worker needs are passed on unchanged.
  auto passed = std::make_shared<std::vector<std::pair<CLI::Option*, std::string>>>();
  auto add = [&](const char* name, auto* value, const char* help) {
    CLI::Option* const option = command->add_option(name, *value, help)->capture_default_str();
    passed->emplace_back(option, name);
    return option;
  };
  auto number = [&](const char* name, auto* value, const Range& range, const char* help) {
    LimitTo(range, add(name, value, help));
  };
  add("--model", &options->model, "Which model")->check(CLI::IsMember(worker::ModelKinds()));
  add("--optimizer", &options->optimizer, "Of tables and dense parameters: sgd, adagrad or adam")
      ->check(CLI::IsMember({"sgd", "adagrad", "adam"}));
  add("--mode", &options->mode, "How tables are updated: async or sync")
      ->check(CLI::IsMember({"async", "sync"}));
  number("--workers", &options->workers, Between(1, 256), "Worker processes");
  number("--servers", &options->servers, Between(1, 256), "Parameter server processes");
  number("--batch", &options->batch, Between(1, 1 << 24), "Examples per worker and step");
  number("--dim", &options->dim, Between(1, 4096), "Embedding dimension");
  number("--sparse", &options->sparse, Between(1, 1024), "Sparse features");
  number("--dense", &options->dense, Between(0, 1024), "Dense features");
  number("--rows", &options->rows, Between(1, 1e12), "Distinct ids of each sparse feature");
  number("--zipf", &options->zipf, Between(0, 10), "Exponent of the ids' distribution");
  number("--steps", &options->steps, Between(1, 1e6), "Steps of one measurement");
  number("--repeats", &options->repeats, Between(1, 1000), "Measurements; the median is reported");
  number("--warmup", &options->warmup, Between(0, 1e6), "Steps before the first measurement");
  number("--lookahead", &options->lookahead, Between(1, 1024), "Batches whose rows are pulled ahead");
  number("--max-in-flight", &options->max_in_flight, Between(1, 4096),
         "Batches whose gradients may be unacknowledged");
  command->add_flag("--json", options->json, "Print one JSON object instead of a table");
  command->add_option("--result-file", options->result_file)->group("");
  command->callback([options, passed, context] {
    if (!options->result_file.empty()) {
      context->exit_code = RunWorker(*options);
      return;
    }
    std::vector<std::string> args;
    for (const auto& [option, name] : *passed) {
      if (option->count() > 0) {
        args.push_back(name);
        args.push_back(option->results().back());
      }
    }
    context->exit_code = RunJob(*options, std::move(args));
  });
}

}  // namespace tandem::bench
