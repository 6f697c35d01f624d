// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/training_run.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/counted.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/table.h"
#include "worker/data/prefetch_reader.h"
#include "worker/evaluation/logistic_baseline.h"
#include "worker/evaluation/metrics.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/gemm.h"
#include "worker/nn/lr_schedule.h"
#include "worker/report/progress.h"
#include "worker/report/training_scalars.h"
#include "worker/step/hybrid_trainer.h"
#include "worker/synthetic/planted.h"
#include "worker/trainer/boundary_agreement.h"
#include "worker/trainer/model_checkpoint.h"
#include "worker/trainer/replication.h"
#include "worker/trainer/run_checkpoints.h"
#include "worker/trainer/segment_reader.h"
#include "worker/trainer/training_plan.h"

namespace tandem::worker {
namespace {

using collectives::ReduceOp;

constexpr size_t kReadAhead = 4;  // batches parsed ahead
// A larger share of lines that repeat other lines' text is worth a warning.
constexpr double kMaxRepeatedShare = 0.1;

v1::InputState InputOf(const Dataset& dataset, int workers) {
  v1::InputState input;
  const InputStatistics& statistics = dataset.statistics();
  for (size_t d = 0; d < statistics.dense.size(); ++d) {
    v1::DenseInput* dense = input.add_dense();
    dense->set_column(dataset.schema().dense[d].column);
    dense->set_mean(statistics.dense[d].mean);
    dense->set_scale(statistics.dense[d].scale);
  }
  input.set_index_features(static_cast<uint32_t>(statistics.index_features));
  input.set_workers(static_cast<uint32_t>(workers));
  return input;
}

class TrainingRun {
 public:
  TrainingRun(const JobSpec& job, const RunOptions& options, const RunContext& context)
      : job_(job),
        options_(options),
        context_(context),
        rank_(context.group->rank()),
        world_size_(context.group->world_size()),
        checkpoints_(&job_, options.overwrite),
        boundary_(context.group, context.stop, job.checkpoint.every_time, context.clock),
        progress_(rank_ != 0, options.terminal, job.train.log_every, context.clock),
        scalars_(job.train.log_every, context.clock) {}

  absl::StatusOr<RunReport> Run();

 private:
  bool is_leader() const { return rank_ == 0; }
  absl::Status Prepare();
  // Starts from scratch or from a checkpoint, and takes a push epoch.
  absl::Status Begin();
  absl::Status Resume();
  // Rank 0 calls `load`; all ranks take over the model and step that it returns.
  absl::Status Load(absl::FunctionRef<absl::StatusOr<LoadedModel>()> load, ModelState* state);
  absl::Status TrainEpoch(int epoch);
  // Trains the batches of the epoch that are left, and saves checkpoints meanwhile. Sets report_.interrupted
  // if the workers have stopped before the end of the epoch.
  absl::StatusOr<PassStats> TrainBatches(int epoch, PrefetchReader* reader);
  // Adds the workers' statistics of this session to the position of the epoch. Called by every rank.
  absl::StatusOr<v1::DataPosition> PositionAfter(uint64_t batches, const PassStats& mine);
  // Returns how many of the epoch's batches come before the position at which the run resumes.
  uint64_t BatchesBefore() const;
  absl::StatusOr<Quality> Evaluate(Split split, ScoredExamples* all);
  // Saves a checkpoint. Called by every rank. Returns false if it could not be saved and the job goes on.
  absl::StatusOr<bool> SaveCheckpoint(const ModelState& state);
  // Returns the state after `epochs` complete epochs, with the trainer's bookkeeping.
  ModelState StateAfter(int epochs) const;
  // Records the evaluation of an epoch in its checkpoint, which was saved before. Called by rank 0.
  void CompleteCheckpoint(const ModelState& state);
  absl::Status Test();
  absl::Status WritePredictions(const ScoredExamples& scored);
  void AddBaselines();
  absl::Status AddTables();
  // Sums the cache statistics of all workers. Called by every rank.
  absl::Status AddCaches();
  Progress::Staleness MeasuredStaleness();
  // Applies the gradients that GBA tables have accumulated, before rows are read or saved. Called by every
  // rank.
  absl::Status ApplyDeferred();
  // Fills in entry->staleness_mean. Rank 0 only.
  absl::Status AddStaleness(EpochReport* entry);
  bool ShouldStopEarly(const EpochReport& epoch);
  // Prints the line of a finished epoch.
  void PrintEpoch(const EpochReport& entry) const;
  double MetricOf(const Quality& quality) const {
    return job_.train.early_stopping.metric == Metric::kAuc ? quality.auc : -quality.logloss;
  }
  void SetState(const char* state) {
    if (context_.status != nullptr) context_.status->SetState(state);
  }
  // Broadcasts values that only rank 0 knows. A `timeout` of zero means the group's.
  absl::Status BroadcastFromLeader(absl::Span<double> values, absl::Duration timeout = absl::ZeroDuration()) {
    return context_.group->Broadcast(values, {.root = 0, .timeout = timeout}).status();
  }
  // Bounds the time for which the other ranks wait while rank 0 saves or loads a checkpoint.
  absl::Duration CheckpointTimeout() const { return job_.checkpoint.timeout + job_.train.timeout; }

  const JobSpec job_;
  const RunOptions options_;
  const RunContext context_;
  const int rank_;
  const int world_size_;
  size_t batch_size_ = 0;       // per worker
  RunCheckpoints checkpoints_;  // rank 0 only
  BoundaryAgreement boundary_;
  Progress progress_;
  TrainingScalars scalars_;
  std::unique_ptr<Dataset> dataset_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<DenseOptimizer> optimizer_;
  std::optional<LearningRateSchedule> schedule_;
  TrainingPlan plan_;
  std::unique_ptr<Replication> replication_;
  std::unique_ptr<HybridTrainer> trainer_;
  int first_epoch_ = 1;
  uint64_t steps_per_epoch_ = 0;
  v1::DataPosition position_;  // where to resume in the first epoch
  uint64_t saved_step_ = 0;    // step of the last checkpoint that was saved or loaded, on all ranks
  std::string saved_path_;     // rank 0: its path; empty if it is not in checkpoint.dir
  double best_metric_ = -std::numeric_limits<double>::infinity();
  int epochs_since_best_ = 0;
  std::string best_checkpoint_;
  std::string loaded_path_;                          // rank 0
  bool warned_of_[2] = {false, false};               // of a split without AUC: test, validation
  double staleness_sum_ = 0, staleness_pushes_ = 0;  // totals up to the end of the last epoch
  RunReport report_;
};

absl::Status TrainingRun::Prepare() {
  UseOneBlasThread();
  batch_size_ = job_.train.batch_size;
  if (const size_t global = job_.train.global_batch_size; global > 0) {
    if (global % static_cast<size_t>(world_size_) != 0) {
      return absl::InvalidArgumentError(absl::StrCat("train.global_batch_size is ", global,
                                                     "; it must be a multiple of the number of workers, ",
                                                     world_size_));
    }
    batch_size_ = global / static_cast<size_t>(world_size_);
  }
  TANDEM_ASSIGN_OR_RETURN(dataset_, Dataset::Open(job_.data));
  ModelOptions model_options = job_.model;
  model_options.num_dense = dataset_->num_dense();
  model_options.num_sparse = dataset_->num_sparse();
  model_options.seed = job_.train.seed;
  TANDEM_ASSIGN_OR_RETURN(model_, CreateModel(model_options));
  TANDEM_ASSIGN_OR_RETURN(plan_, PlanJob(job_, dataset_->schema(), *model_, world_size_));
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    TANDEM_RETURN_IF_ERROR(context_.client->CreateTable(plan_.tables[t]));
    TANDEM_RETURN_IF_ERROR(context_.client->SetWire(plan_.tables[t].name(), plan_.wires[t]));
    TANDEM_RETURN_IF_ERROR(context_.client->SetCache(plan_.tables[t].name(), plan_.caches[t]));
  }

  TANDEM_ASSIGN_OR_RETURN(report_.train_examples, dataset_->Count(Split::kTrain));
  if (report_.train_examples == 0) return absl::InvalidArgumentError("the training split has no examples");
  TANDEM_ASSIGN_OR_RETURN(const double repeated, dataset_->RepeatedShare());
  if (is_leader() && repeated > kMaxRepeatedShare) {
    LogWarning(absl::StrFormat(
        "about %.0f%% of the lines repeat the text of another line, and all lines of the same text are in "
        "the "
        "same split: the splits may be uneven, and metrics may rest on few distinct examples; "
        "data.split.by: position divides such lines too",
        100 * repeated));
  }
  const uint64_t global_batch = batch_size_ * static_cast<uint64_t>(world_size_);
  steps_per_epoch_ = (report_.train_examples + global_batch - 1) / global_batch;
  TANDEM_ASSIGN_OR_RETURN(optimizer_, DenseOptimizer::Create(job_.optimizer, model_->blocks()));
  LearningRateOptions schedule = job_.schedule;
  if (schedule.total_steps == 0)
    schedule.total_steps = steps_per_epoch_ * static_cast<uint64_t>(job_.train.epochs);
  // MetricOf negates metrics of which lower is better, so here higher is always better.
  schedule.higher_is_better = true;
  TANDEM_ASSIGN_OR_RETURN(schedule_, LearningRateSchedule::Create(schedule));
  TANDEM_ASSIGN_OR_RETURN(replication_,
                          Replication::Create(job_, plan_, context_.client, context_.group));
  trainer_ = std::make_unique<HybridTrainer>(
      context_.client, context_.group, model_.get(), optimizer_.get(), plan_.lookup,
      HybridOptions{.lookahead = job_.train.lookahead,
                    .max_in_flight = job_.train.max_in_flight,
                    .bucket_bytes = job_.train.bucket_bytes,
                    .learning_rate = [this](uint64_t step) { return schedule_->At(step); },
                    .learning_rate_factor = [this](uint64_t step) { return schedule_->FactorAt(step); },
                    .replicas = replication_->tables()});
  if (!options_.tensorboard.empty()) {
    TANDEM_RETURN_IF_ERROR(scalars_.Open(options_.tensorboard, rank_, context_.client));
  }
  report_.job = job_.name;
  report_.job_file = options_.job_file;
  report_.model = model_->kind();
  report_.mode = ps::FormatUpdateMode(job_.train.mode);
  report_.workers = world_size_;
  report_.servers = context_.client->num_servers();
  report_.seed = job_.train.seed;
  return absl::OkStatus();
}

uint64_t TrainingRun::BatchesBefore() const {
  // The order of the examples does not depend on the number of workers, nor on the size of their batches.
  const uint64_t then = position_.batch_size() * position_.workers();
  const uint64_t now = batch_size_ * static_cast<uint64_t>(world_size_);
  return std::min(steps_per_epoch_, position_.batches() * then / now);
}

absl::StatusOr<v1::DataPosition> TrainingRun::PositionAfter(uint64_t batches, const PassStats& mine) {
  double sums[] = {static_cast<double>(mine.examples), mine.loss_sum};
  TANDEM_RETURN_IF_ERROR(context_.group->AllReduce(absl::MakeSpan(sums), {.op = ReduceOp::kSum}).status());
  v1::DataPosition position;
  position.set_batches(batches);
  position.set_batch_size(batch_size_);
  position.set_workers(static_cast<uint32_t>(world_size_));
  position.set_examples(position_.examples() + static_cast<uint64_t>(sums[0]));
  position.set_loss_sum(position_.loss_sum() + sums[1]);
  return position;
}

absl::StatusOr<PassStats> TrainingRun::TrainBatches(int epoch, PrefetchReader* reader) {
  SegmentReader segment(reader, BatchesBefore());
  PassStats total;
  total.served = NoneServed(plan_.lookup);
  while (segment.batches() < steps_per_epoch_) {
    uint64_t end = steps_per_epoch_;
    if (const uint64_t every = job_.checkpoint.every_steps; every > 0) {
      end = std::min(end, segment.batches() + every - trainer_->step() % every);
    }
    segment.SetEnd(end);
    boundary_.BeginSegment();
    const uint64_t begin = segment.batches();
    absl::Status agreed;
    TANDEM_ASSIGN_OR_RETURN(const PassStats stats, trainer_->Train(&segment, [&](const StepReport& step) {
      if (context_.status != nullptr) context_.status->SetStep(step.step + 1);
      scalars_.Step(step, schedule_->At(step.step));
      progress_.Step(step.examples * static_cast<uint64_t>(world_size_), step.loss,
                     [this] { return MeasuredStaleness(); });
      if (agreed.ok()) agreed = boundary_.AfterStep(&segment);
    }));
    TANDEM_RETURN_IF_ERROR(agreed);
    total.Add(stats);
    // Fewer batches than there should be: lines could not be parsed.
    if (segment.batches() == begin || segment.batches() < segment.end()) break;
    if (segment.batches() == steps_per_epoch_) break;
    TANDEM_RETURN_IF_ERROR(ApplyDeferred());
    TANDEM_ASSIGN_OR_RETURN(const v1::DataPosition position, PositionAfter(segment.batches(), total));
    ModelState state = StateAfter(epoch - 1);
    state.position = position;
    TANDEM_ASSIGN_OR_RETURN(const bool saved, SaveCheckpoint(state));
    TANDEM_ASSIGN_OR_RETURN(const bool stop, boundary_.MustStop());
    if (stop) {
      if (!saved) return absl::AbortedError("asked to stop, and the checkpoint could not be saved");
      report_.interrupted = true;
      return total;
    }
    SetState("training");
  }
  return total;
}

absl::Status TrainingRun::TrainEpoch(int epoch) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                          dataset_->Read({.split = Split::kTrain,
                                          .batch_size = batch_size_,
                                          .shuffle = job_.shuffle,
                                          .seed = job_.train.seed,
                                          .epoch = static_cast<uint64_t>(epoch),
                                          .shuffle_buffer = job_.shuffle_buffer,
                                          .rank = rank_,
                                          .world_size = world_size_,
                                          .tail = ReadOptions::Tail::kPad}));
  PrefetchReader ahead(std::move(reader), kReadAhead);
  SetState("training");
  if (context_.status != nullptr) context_.status->SetTrainEpoch(epoch);
  // The lines before the position are parsed again, since malformed ones are replaced.
  Batch skipped;
  for (uint64_t i = 0; i < BatchesBefore() && BatchesBefore() < steps_per_epoch_; ++i) {
    TANDEM_RETURN_IF_ERROR(ahead.Next(&skipped).status());
  }
  progress_.BeginEpoch(epoch, job_.train.epochs,
                       report_.train_examples - std::min(report_.train_examples, position_.examples()));
  scalars_.BeginEpoch();
  absl::StatusOr<PassStats> stats = TrainBatches(epoch, &ahead);
  progress_.EndEpoch();
  TANDEM_RETURN_IF_ERROR(stats);
  if (report_.interrupted) return absl::OkStatus();

  // Sums over all workers. The same all-reduce makes sure that no worker continues before all gradients of
  // all workers are acknowledged.
  double sums[] = {static_cast<double>(stats->examples), stats->loss_sum,
                   static_cast<double>(ahead.malformed_lines())};
  double slowest[] = {stats->seconds};
  TANDEM_RETURN_IF_ERROR(context_.group->AllReduce(absl::MakeSpan(sums), {.op = ReduceOp::kSum}).status());
  TANDEM_RETURN_IF_ERROR(context_.group->AllReduce(absl::MakeSpan(slowest), {.op = ReduceOp::kMax}).status());

  TANDEM_RETURN_IF_ERROR(ApplyDeferred());
  std::vector<std::string> features;
  for (const SparseFeature& feature : dataset_->schema().sparse) features.push_back(feature.column);
  TANDEM_RETURN_IF_ERROR(replication_->AddEpoch(epoch, *stats, trainer_->served(), features, &report_));
  TANDEM_ASSIGN_OR_RETURN(const v1::DataPosition all_batches, PositionAfter(steps_per_epoch_, *stats));
  position_.Clear();  // the next epoch begins at its start

  EpochReport entry;
  entry.epoch = epoch;
  entry.step = trainer_->step();
  entry.steps = stats->steps;
  entry.examples = static_cast<uint64_t>(sums[0]);
  entry.train_loss = all_batches.loss_sum() / std::max<double>(1.0, all_batches.examples());
  entry.seconds = slowest[0];
  entry.samples_per_s = sums[0] / std::max(1e-9, slowest[0]);
  entry.learning_rate = schedule_->At(trainer_->step());
  entry.times = stats->times;
  if (is_leader()) TANDEM_RETURN_IF_ERROR(AddStaleness(&entry));
  report_.malformed_lines = static_cast<uint64_t>(sums[2]);

  const bool last = epoch == job_.train.epochs;
  const int every = job_.checkpoint.every_epochs;
  const uint64_t every_steps = job_.checkpoint.every_steps;
  TANDEM_ASSIGN_OR_RETURN(const bool stop, boundary_.MustStop());
  const bool planned = job_.checkpoint.periodic() &&
                       (last || (every > 0 && epoch % every == 0) ||
                        (every_steps > 0 && trainer_->step() % every_steps == 0) || boundary_.save_due());
  bool saved = trainer_->step() == saved_step_;
  if (!saved && (planned || stop)) {
    // It is completed after the evaluation. A run that resumes before that begins with the evaluation.
    ModelState state = StateAfter(epoch - 1);
    state.position = all_batches;
    TANDEM_ASSIGN_OR_RETURN(saved, SaveCheckpoint(state));
  }
  if (stop) {
    if (!saved) return absl::AbortedError("asked to stop, and the checkpoint could not be saved");
    report_.interrupted = true;
    return absl::OkStatus();
  }
  SetState("evaluating");
  TANDEM_ASSIGN_OR_RETURN(entry.valid, Evaluate(Split::kValid, nullptr));
  scalars_.EndEpoch(entry);
  const bool comparable = std::isfinite(MetricOf(entry.valid));
  entry.best =
      !comparable || MetricOf(entry.valid) >
                         best_metric_ + (report_.best_epoch == 0 ? 0.0 : job_.train.early_stopping.min_delta);
  if (entry.best) {
    if (comparable) best_metric_ = MetricOf(entry.valid);
    report_.best_epoch = epoch;
    epochs_since_best_ = 0;
  } else {
    ++epochs_since_best_;
  }
  schedule_->OnMetric(MetricOf(entry.valid));
  if (is_leader()) PrintEpoch(entry);
  ModelState state = StateAfter(epoch);
  state.metrics.insert({{"valid_auc", entry.valid.auc},
                        {"valid_logloss", entry.valid.logloss},
                        {"train_loss", entry.train_loss}});
  if (saved) {
    if (is_leader()) CompleteCheckpoint(state);
  } else if (!planned && entry.best) {
    TANDEM_ASSIGN_OR_RETURN(saved, SaveCheckpoint(state));
  }
  if (is_leader() && entry.best) best_checkpoint_ = saved ? saved_path_ : "";
  if (is_leader() && saved) checkpoints_.Prune(best_checkpoint_);
  report_.epochs.push_back(std::move(entry));
  return absl::OkStatus();
}

void TrainingRun::PrintEpoch(const EpochReport& entry) const {
  std::printf("epoch %d/%d  train loss %.4f  valid AUC %s  logloss %s  %.0f samples/s%s\n", entry.epoch,
              job_.train.epochs, entry.train_loss, FormatMetric(entry.valid.auc).c_str(),
              FormatMetric(entry.valid.logloss).c_str(), entry.samples_per_s, entry.best ? "  *" : "");
  std::fflush(stdout);
}

absl::StatusOr<Quality> TrainingRun::Evaluate(Split split, ScoredExamples* all) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<BatchReader> reader,
                          dataset_->Read({.split = split,
                                          .batch_size = std::max<size_t>(batch_size_, 1024),
                                          .rank = rank_,
                                          .world_size = world_size_,
                                          .tail = ReadOptions::Tail::kExact}));
  PrefetchReader ahead(std::move(reader), kReadAhead);
  TANDEM_ASSIGN_OR_RETURN(ScoredExamples mine, trainer_->Predict(&ahead));
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> gathered,
                          context_.group->AllGatherBytes(mine.Serialize()));
  ScoredExamples merged;
  for (const std::string& theirs : gathered) {
    TANDEM_ASSIGN_OR_RETURN(ScoredExamples part, ScoredExamples::Parse(theirs));
    merged.Merge(part);
  }
  // All ranks hold the same examples in the same order, so they compute the same metrics.
  const uint64_t examples = merged.size();
  const auto positives = static_cast<uint64_t>(std::count_if(merged.labels().begin(), merged.labels().end(),
                                                             [](float label) { return label > 0.5f; }));
  if (positives == 0 || positives == examples) {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    const Quality quality{
        .auc = kNone,
        .logloss = examples == 0 ? kNone : LogLossFromLogits(merged.labels(), merged.logits()),
        .examples = examples};
    if (is_leader() && !warned_of_[split == Split::kValid]) {
      warned_of_[split == Split::kValid] = true;
      LogWarning(absl::StrCat("the ", split == Split::kValid ? "validation" : "test", " split has ", examples,
                              " examples, ", positives, " of them positive: its AUC is n/a"));
    }
    if (all != nullptr) *all = std::move(merged);
    return quality;
  }
  const absl::StatusOr<ClickMetrics> metrics = merged.Evaluate();
  if (!metrics.ok()) {
    return Annotate(metrics.status(), absl::StrCat("evaluating the ",
                                                   split == Split::kValid ? "validation" : "test", " split"));
  }
  if (all != nullptr) *all = std::move(merged);
  return Quality{.auc = metrics->auc, .logloss = metrics->logloss, .examples = metrics->examples};
}

Progress::Staleness TrainingRun::MeasuredStaleness() {
  const absl::StatusOr<std::vector<v1::TableInfo>> tables = context_.client->ListTables();
  double mean = 0;
  if (tables.ok()) {
    for (const v1::TableInfo& table : *tables) mean = std::max(mean, table.statistics().staleness_mean());
  }
  if (job_.train.mode.kind() == v1::UpdateMode::SYNC) return mean;
  ps::RowStalenessCounts rows;  // of this worker's pushes
  for (const v1::TableConfig& table : plan_.tables) {
    const auto segments = context_.client->RowStalenessStatistics(table.name());
    for (const ps::RowStalenessCounts& segment : segments.value_or(std::vector<ps::RowStalenessCounts>())) {
      rows.Add(segment);
    }
  }
  return {mean, rows.rows > 0 ? rows.Mean() : -1};
}

absl::Status TrainingRun::ApplyDeferred() {
  absl::Status applied;
  if (is_leader()) {
    // Independent of the job's mode, because a user may have changed a table's mode while the job ran.
    for (const v1::TableConfig& table : plan_.tables) applied.Update(context_.client->Flush(table.name()));
  }
  TANDEM_RETURN_IF_ERROR(applied);
  return context_.group->Barrier().status();
}

absl::Status TrainingRun::AddStaleness(EpochReport* entry) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::TableInfo> tables, context_.client->ListTables());
  double sum = 0, pushes = 0;
  for (const v1::TableInfo& table : tables) {
    const auto& histogram = table.statistics().staleness_histogram();
    const double count = std::accumulate(histogram.begin(), histogram.end(), 0.0);
    sum += table.statistics().staleness_mean() * count;
    pushes += count;
  }
  if (pushes > staleness_pushes_) {
    entry->staleness_mean = std::max(0.0, (sum - staleness_sum_) / (pushes - staleness_pushes_));
  }
  staleness_sum_ = sum;
  staleness_pushes_ = pushes;
  return absl::OkStatus();
}

bool TrainingRun::ShouldStopEarly(const EpochReport& epoch) {
  const int patience = job_.train.early_stopping.patience;
  return patience > 0 && epochs_since_best_ >= patience && epoch.epoch < job_.train.epochs;
}

ModelState TrainingRun::StateAfter(int epochs) const {
  return {.step = trainer_->step(),
          .epoch = static_cast<uint64_t>(epochs),
          .metrics = {{"best_metric", best_metric_},
                      {"best_epoch", report_.best_epoch},
                      {"epochs_since_best", epochs_since_best_}},
          .run_id = checkpoints_.run_id(),
          .input = InputOf(*dataset_, world_size_)};
}

absl::StatusOr<bool> TrainingRun::SaveCheckpoint(const ModelState& state) {
  SetState("saving");
  // Rank 0 writes while the others wait. No push is in flight, so all servers save the same state.
  absl::Status saved;
  if (is_leader()) {
    ModelState complete = state;
    // The servers save the tables, so they need the rows that the workers have.
    auto replicated = replication_->WriteBack();
    absl::StatusOr<std::string> path = absl::UnknownError("");
    if (replicated.ok()) {
      complete.replicated = *std::move(replicated);
      path = SaveModel(job_, complete, context_.client, model_.get(), *optimizer_, *schedule_);
    } else {
      path = replicated.status();
    }
    saved = path.status();
    if (path.ok()) {
      saved_path_ = *path;
      checkpoints_.Prune(best_checkpoint_);
    }
  }
  double ok[] = {saved.ok() ? 1.0 : 0.0};
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(ok), CheckpointTimeout()));
  boundary_.NoteCheckpoint();
  if (ok[0] == 1.0) {
    saved_step_ = state.step;
    report_.save_error.clear();
    return true;
  }
  const bool goes_on = job_.checkpoint.on_failure == SaveFailure::kContinue;
  if (!is_leader()) {
    if (goes_on) return false;
    return absl::AbortedError("rank 0 could not save a checkpoint; its log says why");
  }
  saved = Annotate(saved, absl::StrCat("saving the checkpoint of step ", state.step));
  if (!goes_on) return saved;
  report_.save_error = std::string(saved.message());
  LogError(absl::StrCat(saved.message(),
                        "; training goes on (checkpoint.on_failure: continue), and resumes from the "
                        "checkpoint before if it fails now"));
  return false;
}

void TrainingRun::CompleteCheckpoint(const ModelState& state) {
  if (saved_path_.empty()) return;
  const absl::Status updated = UpdateModelState(job_, saved_path_, state, *model_, *schedule_);
  if (updated.ok()) return;
  // The checkpoint is good; a run that resumes from it evaluates the epoch again.
  LogError(absl::StrCat("recording the evaluation in ", saved_path_, ": ", updated.message()));
}

absl::Status TrainingRun::Load(absl::FunctionRef<absl::StatusOr<LoadedModel>()> load, ModelState* state) {
  absl::Status status;
  std::string serialized;
  if (is_leader()) {
    absl::StatusOr<LoadedModel> loaded = load();
    status = loaded.status();
    if (loaded.ok()) {
      serialized = loaded->Serialize();
      loaded_path_ = loaded->path;
      LogInfo(absl::StrCat("loaded ", loaded->path));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> gathered,
                          context_.group->AllGatherBytes(serialized, {.timeout = CheckpointTimeout()}));
  TANDEM_RETURN_IF_ERROR(status);
  if (gathered[0].empty())
    return absl::AbortedError("rank 0 could not load the checkpoint; its log says why");
  TANDEM_ASSIGN_OR_RETURN(LoadedModel loaded, LoadedModel::Parse(gathered[0]));
  TANDEM_RETURN_IF_ERROR(loaded.Apply(model_.get(), optimizer_.get(), &*schedule_));
  trainer_->set_step(loaded.state.step);
  TANDEM_RETURN_IF_ERROR(replication_->Restore(loaded.state.replicated));
  if (context_.status != nullptr) context_.status->SetStep(loaded.state.step);
  *state = std::move(loaded.state);
  return absl::OkStatus();
}

absl::Status TrainingRun::Begin() {
  bool anew = options_.resume.empty();
  absl::Status begun;
  if (is_leader()) {
    if (options_.resume == "auto") {
      begun = ps::RepairCheckpoints(job_.checkpoint.dir);
      const auto paths = ps::CheckpointPaths(job_.checkpoint.dir);
      begun.Update(paths.status());
      anew = paths.ok() && paths->empty();
    }
    if (begun.ok() && anew) begun = checkpoints_.StartAnew();
  }
  double agreed[] = {begun.ok() ? 1.0 : 0.0, anew ? 1.0 : 0.0};
  // Removing the checkpoints of an earlier run may take long.
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(agreed), CheckpointTimeout()));
  TANDEM_RETURN_IF_ERROR(begun);
  if (agreed[0] != 1.0) return absl::AbortedError("rank 0 does not start; its log says why");
  if (agreed[1] != 1.0) TANDEM_RETURN_IF_ERROR(Annotate(Resume(), "resuming"));
  // After a checkpoint is loaded, because it may hold pushes of this worker's epoch.
  return context_.client->StartPushEpoch();
}

absl::Status TrainingRun::Resume() {
  const std::string from = options_.resume == "auto" ? "latest" : options_.resume;
  ModelState state;
  TANDEM_RETURN_IF_ERROR(Load([&] { return checkpoints_.Resume(from, context_.client); }, &state));
  first_epoch_ = static_cast<int>(state.epoch) + 1;
  if (state.position.has_value()) {
    position_ = *state.position;
    if (is_leader()) {
      LogInfo(absl::StrCat("resuming in epoch ", first_epoch_, " after ", BatchesBefore(), " of ",
                           steps_per_epoch_, " batches"));
    }
  }
  if (is_leader() && loaded_path_ == absl::StrCat(job_.checkpoint.dir, "/", ps::CheckpointName(state.step))) {
    saved_path_ = loaded_path_;
  }
  double in_directory[] = {saved_path_.empty() ? 0.0 : 1.0};
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(in_directory)));
  if (in_directory[0] == 1.0) saved_step_ = state.step;
  auto metric = [&](const char* name, double fallback) {
    const auto found = state.metrics.find(name);
    return found == state.metrics.end() ? fallback : found->second;
  };
  best_metric_ = metric("best_metric", best_metric_);
  report_.best_epoch = static_cast<int>(metric("best_epoch", 0));
  epochs_since_best_ = static_cast<int>(metric("epochs_since_best", 0));
  if (is_leader()) best_checkpoint_ = checkpoints_.OfEpoch(static_cast<uint64_t>(report_.best_epoch));
  return absl::OkStatus();
}

absl::Status TrainingRun::Test() {
  // The best epoch's model is the one that is tested and kept. It is the current one unless a later epoch was
  // worse.
  const bool current_is_best = !report_.epochs.empty() && report_.epochs.back().best;
  double reload[] = {!current_is_best && !best_checkpoint_.empty() ? 1.0 : 0.0};
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(reload)));
  report_.tested_epoch = report_.best_epoch;
  if (reload[0] == 0.0 && !current_is_best && report_.best_epoch > 0) {
    report_.tested_epoch = report_.epochs.empty() ? first_epoch_ - 1 : report_.epochs.back().epoch;
    if (is_leader()) {
      LogWarning(absl::StrCat("there is no checkpoint of the best epoch, ", report_.best_epoch,
                              ": the model of epoch ", report_.tested_epoch, " is tested"));
    }
  }
  if (reload[0] == 1.0) {
    ModelState state;
    TANDEM_RETURN_IF_ERROR(
        Annotate(Load([this] { return LoadModel(job_, best_checkpoint_, context_.client); }, &state),
                 "loading the best epoch's checkpoint"));
  }
  SetState("testing");
  ScoredExamples scored;
  TANDEM_ASSIGN_OR_RETURN(report_.test, Evaluate(Split::kTest, &scored));
  scalars_.Test(trainer_->step(), report_.test);
  if (is_leader() && !options_.predictions.empty()) return WritePredictions(scored);
  return absl::OkStatus();
}

absl::Status TrainingRun::WritePredictions(const ScoredExamples& scored) {
  std::ofstream out(options_.predictions, std::ios::trunc);
  for (size_t i = 0; i < scored.size(); ++i) {
    out << absl::StrFormat("%d\t%.9g\n", scored.labels()[i] > 0.5f ? 1 : 0, Sigmoid(scored.logits()[i]));
  }
  out.close();
  if (!out)
    return absl::UnavailableError(absl::StrCat("cannot write predictions to '", options_.predictions, "'"));
  return absl::OkStatus();
}

void TrainingRun::AddBaselines() {
  const absl::StatusOr<LogisticBaseline> baseline =
      TrainLogisticBaseline(dataset_.get(), {.seed = job_.train.seed});
  if (!baseline.ok()) {
    LogWarning(absl::StrCat("no baselines: ", baseline.status().message()));
    return;
  }
  report_.baselines.push_back(
      {"global mean",
       {.auc = 0.5, .logloss = baseline->mean_test_logloss, .examples = baseline->test.examples}});
  report_.baselines.push_back(
      {"logistic regression (one process)",
       {.auc = baseline->test.auc, .logloss = baseline->test.logloss, .examples = baseline->test.examples}});
  // A generated log comes with the metrics of its true model. They apply only if the job splits the log as
  // its generator did.
  if (job_.data.train_files.size() != 1 || !job_.data.test_files.empty()) return;
  const absl::StatusOr<PlantedSummary> planted = ReadPlantedSummary(job_.data.train_files[0]);
  if (!planted.ok() || planted->test.examples != report_.test.examples) return;
  report_.baselines.push_back(
      {"best possible (the planted model)",
       {.auc = planted->test.auc, .logloss = planted->test.logloss, .examples = planted->test.examples}});
}

absl::Status TrainingRun::AddTables() {
  TANDEM_ASSIGN_OR_RETURN(auto servers, context_.client->ListTablesPerServer(0));
  for (const v1::TableConfig& table : plan_.tables) {
    report_.tables.push_back(SummarizeTable(table.name(), servers));
    TANDEM_ASSIGN_OR_RETURN(report_.tables.back().feedback,
                            context_.client->FeedbackStatistics(table.name()));
    replication_->AddTable(report_.tables.size() - 1, &report_.tables.back());
  }
  return absl::OkStatus();
}

absl::Status TrainingRun::AddCaches() {
  for (size_t t = 0; t < plan_.tables.size(); ++t) {
    if (plan_.caches[t].bytes == 0) continue;
    const std::string& name = plan_.tables[t].name();
    TANDEM_ASSIGN_OR_RETURN(const ps::CacheStatistics mine, context_.client->CacheStatisticsOf(name));
    // Sent as raw bytes: the workers are processes of the same program.
    static_assert(std::is_trivially_copyable_v<ps::CacheStatistics>);
    TANDEM_ASSIGN_OR_RETURN(
        const std::vector<std::string> gathered,
        context_.group->AllGatherBytes(std::string(reinterpret_cast<const char*>(&mine), sizeof(mine))));
    if (!is_leader()) continue;
    ps::CacheStatistics sum;
    for (const std::string& theirs : gathered) {
      if (theirs.size() != sizeof(sum))
        return absl::DataLossError("a worker sent malformed cache statistics");
      ps::CacheStatistics one;
      std::memcpy(&one, theirs.data(), sizeof(one));
      sum.Add(one);
    }
    for (TableReport& table : report_.tables) {
      if (table.name == name) table.cache = sum;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<RunReport> TrainingRun::Run() {
  const absl::Time began = context_.clock->Now();
  TANDEM_RETURN_IF_ERROR(Prepare());
  TANDEM_RETURN_IF_ERROR(context_.group->Barrier().status());  // every worker has created the tables
  TANDEM_RETURN_IF_ERROR(Begin());
  if (is_leader()) {
    LogInfo(absl::StrCat("training ", report_.model, " on ", report_.train_examples,
                         " examples: ", Counted(report_.workers, "worker"), ", ",
                         Counted(report_.servers, "parameter server"), ", ", report_.mode));
  }
  for (int epoch = first_epoch_; epoch <= job_.train.epochs; ++epoch) {
    TANDEM_RETURN_IF_ERROR(TrainEpoch(epoch));
    if (report_.interrupted) {
      report_.checkpoint = saved_path_;
      return report_;
    }
    if (ShouldStopEarly(report_.epochs.back())) {
      report_.stopped_early = true;
      break;
    }
  }
  double examples = 0, seconds = 0;
  for (const EpochReport& epoch : report_.epochs) {
    examples += static_cast<double>(epoch.examples);
    seconds += epoch.seconds;
  }
  report_.samples_per_s = seconds > 0 ? examples / seconds : 0;
  if (is_leader()) TANDEM_RETURN_IF_ERROR(AddTables());  // before Test() reloads the best epoch's rows
  TANDEM_RETURN_IF_ERROR(AddCaches());
  TANDEM_RETURN_IF_ERROR(Test());
  if (is_leader() && options_.baselines) AddBaselines();
  report_.checkpoint = best_checkpoint_;
  report_.seconds = absl::ToDoubleSeconds(context_.clock->Now() - began);
  return report_;
}

}  // namespace

absl::StatusOr<RunReport> RunTraining(const JobSpec& job, const RunOptions& options,
                                      const RunContext& context) {
  TrainingRun run(job, options, context);
  return run.Run();
}

}  // namespace tandem::worker
