// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/scoring.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/client/client.h"
#include "ps/server/parameter_server.h"
#include "rpc/transport/loopback.h"
#include "worker/data/prefetch_reader.h"
#include "worker/job/job_parser.h"
#include "worker/nn/gemm.h"
#include "worker/step/hybrid_trainer.h"
#include "worker/trainer/continuation.h"
#include "worker/trainer/data_identity.h"
#include "worker/trainer/model_checkpoint.h"
#include "worker/trainer/training_plan.h"

namespace tandem::worker {
namespace {

constexpr size_t kScoreAhead = 4;  // batches parsed ahead
// Bounds loading, which takes as long as the disk needs. Nobody else waits for it.
constexpr absl::Duration kLoadTimeout = absl::Hours(12);

// Changes what only matters in training. The tables get every row of the checkpoint and keep it in memory.
void PrepareForScoring(JobSpec* job) {
  std::vector<TableSpec*> tables = {&job->embedding, &job->wide};
  for (TableSpec& table : job->tables) tables.push_back(&table);
  for (TableSpec* table : tables) {
    table->admission = ps::AdmitAlways();
    table->eviction.Clear();
    table->byte_budget = 0;
    table->spill = false;
    table->cache = {};
  }
  job->train.mode = ps::Async();  // a pull never waits for other workers
  job->schedule.kind = "constant";
}

// The data to score, and how the trainer divided it among its workers.
struct Input {
  DatasetOptions data;
  Split split = Split::kTrain;
  int workers = 1;
};

Input FindInput(const ScoreOptions& options, const JobSpec& job, const v1::CheckpointManifest& manifest) {
  Input input{.data = job.data};
  DatasetOptions& data = input.data;
  if (!data.valid_files.empty()) data.valid_fraction = 0;
  if (!data.test_files.empty()) data.test_fraction = 0;
  bool whole = false;
  if (!options.files.empty()) {
    data.train_files = options.files;
    whole = !options.split.has_value();
  } else if (options.split.value_or(Split::kTest) == Split::kTest && !data.test_files.empty()) {
    data.train_files = data.test_files;
    whole = true;
  } else if (options.split == Split::kValid && !data.valid_files.empty()) {
    data.train_files = data.valid_files;
    whole = true;
  }
  data.valid_files.clear();
  data.test_files.clear();
  if (whole) {
    data.valid_fraction = data.test_fraction = 0;
  } else {
    input.split = options.split.value_or(Split::kTest);
  }
  // Examples that the user's own order matters for are read in that order.
  if (options.files.empty() || options.split.has_value()) {
    input.workers = std::max(1, static_cast<int>(manifest.input().workers()));
  }
  if (options.max_malformed.has_value()) data.max_malformed = *options.max_malformed;

  data.statistics = StatisticsOf(manifest.input());
  return input;
}

// A client of the only parameter server, which is in this process.
// Returns the number of dense parameters in a checkpoint.
absl::StatusOr<int64_t> DenseParametersOf(const std::string& checkpoint) {
  TANDEM_ASSIGN_OR_RETURN(const v1::DenseState dense, ps::ReadDenseState(checkpoint));
  uint64_t bytes = 0;
  for (const v1::DenseBlock& block : dense.parameters()) bytes += block.values().size();
  return static_cast<int64_t>(bytes / sizeof(float));
}

class LocalTables {
 public:
  static absl::StatusOr<std::unique_ptr<LocalTables>> Open() {
    auto tables = std::make_unique<LocalTables>();
    tables->server_ = std::make_unique<ps::ParameterServer>(ps::ParameterServerOptions{});
    auto services = std::make_shared<const std::vector<rpc::Service>>(
        std::vector<rpc::Service>{tables->server_->service()});
    std::vector<std::unique_ptr<rpc::Channel>> channels;
    channels.push_back(rpc::ConnectLoopback(std::move(services)));
    TANDEM_ASSIGN_OR_RETURN(tables->client_,
                            ps::Client::Connect(std::move(channels), {.timeout = absl::Minutes(10),
                                                                      .checkpoint_timeout = kLoadTimeout}));
    return tables;
  }
  ps::Client* client() { return client_.get(); }

 private:
  std::unique_ptr<ps::ParameterServer> server_;
  std::unique_ptr<ps::Client> client_;  // destroyed before the server
};

// Passes the batches of another reader on, and collects what they keep of the lines.
class KeepingReader : public BatchReader {
 public:
  // Both must outlive the object.
  KeepingReader(BatchReader* reader, std::vector<std::string>* kept) : reader_(*reader), kept_(*kept) {}

  absl::StatusOr<bool> Next(Batch* batch) override {
    const absl::StatusOr<bool> more = reader_.Next(batch);
    if (more.ok() && *more) kept_.insert(kept_.end(), batch->kept.begin(), batch->kept.end());
    return more;
  }
  uint64_t malformed_lines() const override { return reader_.malformed_lines(); }

 private:
  BatchReader& reader_;
  std::vector<std::string>& kept_;
};

}  // namespace

absl::StatusOr<Scores> ScoreCheckpoint(const ScoreOptions& options) {
  UseOneBlasThread();  // as in training, so that sums have the same bits
  Scores scores;
  TANDEM_ASSIGN_OR_RETURN(scores.checkpoint, ps::BestCheckpoint(options.checkpoint));
  TANDEM_ASSIGN_OR_RETURN(const v1::CheckpointManifest manifest, ps::ReadManifest(scores.checkpoint));
  TANDEM_RETURN_IF_ERROR(CheckWrittenByJob(scores.checkpoint, manifest));
  absl::StatusOr<JobSpec> parsed =
      options.job_file.empty()
          ? ParseJob(manifest.job_text(), absl::StrCat("the job in ", scores.checkpoint), options.set)
          : LoadJob(options.job_file, options.set);
  TANDEM_RETURN_IF_ERROR(parsed.status());
  JobSpec job = *std::move(parsed);
  TANDEM_RETURN_IF_ERROR(CheckModelKind(job, scores.checkpoint, manifest));
  job.data.schema.label_is_optional = options.label_is_optional;
  job.data.schema.kept = options.keep;
  const Input input = FindInput(options, job, manifest);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Dataset> dataset, Dataset::Open(input.data));
  const std::vector<std::string> others = CompareFeatures(manifest.data(), dataset->schema());
  if (!others.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(scores.checkpoint, " was trained on other features: ", absl::StrJoin(others, "; "),
                     "; give the columns of its job"));
  }

  PrepareForScoring(&job);
  ModelOptions model_options = job.model;
  model_options.num_dense = dataset->num_dense();
  model_options.num_sparse = dataset->num_sparse();
  model_options.seed = job.train.seed;
  // The job may come from somebody else, with the checkpoint. LoadModel says what is wrong with its files.
  // Small models are built in any case: later checks say better what differs.
  constexpr int64_t kSmall = 1 << 16;
  model_options.max_parameters =
      std::max(kSmall, DenseParametersOf(scores.checkpoint).value_or(kMostParameters));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model, CreateModel(model_options));
  TANDEM_ASSIGN_OR_RETURN(const TrainingPlan plan, PlanJob(job, dataset->schema(), *model, 1));
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<LocalTables> tables, LocalTables::Open());
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    TANDEM_RETURN_IF_ERROR(tables->client()->CreateTable(plan.tables[t]));
    TANDEM_RETURN_IF_ERROR(tables->client()->SetWire(plan.tables[t].name(), plan.wires[t]));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<DenseOptimizer> optimizer,
                          DenseOptimizer::Create(job.optimizer, model->blocks()));
  TANDEM_ASSIGN_OR_RETURN(LearningRateSchedule schedule, LearningRateSchedule::Create(job.schedule));
  TANDEM_ASSIGN_OR_RETURN(const LoadedModel loaded, LoadModel(job, scores.checkpoint, tables->client()));
  TANDEM_RETURN_IF_ERROR(loaded.Apply(model.get(), optimizer.get(), &schedule));

  HybridTrainer trainer(tables->client(), /*group=*/nullptr, model.get(), optimizer.get(), plan.lookup, {});
  trainer.set_step(loaded.state.step);
  size_t batch_size = job.train.batch_size;
  if (job.train.global_batch_size > 0) {
    batch_size = job.train.global_batch_size / static_cast<size_t>(input.workers);
  }
  // The trainer's workers scored one shard each. Reading the same shards one after the other gives the same
  // batches, and so the same bits.
  for (int rank = 0; rank < input.workers; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                            dataset->Read({.split = input.split,
                                           .batch_size = std::max<size_t>(batch_size, 1024),
                                           .rank = rank,
                                           .world_size = input.workers,
                                           .tail = ReadOptions::Tail::kExact}));
    PrefetchReader ahead(std::move(reader), kScoreAhead);
    KeepingReader keeping(&ahead, &scores.kept);
    TANDEM_ASSIGN_OR_RETURN(const ScoredExamples shard, trainer.Predict(&keeping));
    scores.examples.Merge(shard);
    scores.malformed_lines += ahead.malformed_lines();
  }
  scores.job = job.name;
  scores.model = model->kind();
  scores.step = manifest.step();
  scores.epoch = manifest.epoch();
  scores.files = input.data.train_files;
  if (input.data.valid_fraction > 0 || input.data.test_fraction > 0) scores.split = input.split;
  scores.labelled = dataset->labelled();
  return scores;
}

}  // namespace tandem::worker
