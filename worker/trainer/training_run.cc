// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/training_run.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/counted.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/table.h"
#include "worker/nn/gemm.h"
#include "worker/trainer/training_run_impl.h"

namespace tandem::worker {
namespace {

// A larger share of lines that repeat other lines' text is worth a warning.
constexpr double kMaxRepeatedShare = 0.1;

}  // namespace

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
  TANDEM_ASSIGN_OR_RETURN(const DatasetOptions data, DataOptions());
  TANDEM_ASSIGN_OR_RETURN(dataset_, Dataset::Open(data));
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
  TANDEM_ASSIGN_OR_RETURN(
      replication_, Replication::Create(job_, dataset_->schema(), plan_, context_.client, context_.group));
  trainer_ = std::make_unique<HybridTrainer>(
      context_.client, context_.group, model_.get(), optimizer_.get(), plan_.lookup,
      HybridOptions{
          .lookahead = job_.train.lookahead,
          .max_in_flight = job_.train.max_in_flight,
          .bucket_bytes = job_.train.bucket_bytes,
          .learning_rate = [this](uint64_t step) { return schedule_->At(ScheduleStep(step)); },
          .learning_rate_factor = [this](uint64_t step) { return schedule_->FactorAt(ScheduleStep(step)); },
          .replicas = replication_->tables(),
          .write_back_steps = job_.train.hot_rows.write_back_steps});
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

bool TrainingRun::ShouldStopEarly(int epoch) const {
  const int patience = job_.train.early_stopping.patience;
  return patience > 0 && epochs_since_best_ >= patience && epoch < job_.train.epochs;
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
  // A run that stopped early does not train one epoch more each time it is resumed.
  report_.stopped_early = position_.batches() == 0 && ShouldStopEarly(first_epoch_ - 1);
  if (first_epoch_ <= job_.train.epochs && !report_.stopped_early)
    TANDEM_RETURN_IF_ERROR(replication_->BeginStart());
  for (int epoch = first_epoch_; epoch <= job_.train.epochs && !report_.stopped_early; ++epoch) {
    TANDEM_RETURN_IF_ERROR(TrainEpoch(epoch));
    if (report_.interrupted) {
      TANDEM_RETURN_IF_ERROR(replication_->EndStart());
      report_.checkpoint = saved_path_;
      return report_;
    }
    report_.stopped_early = ShouldStopEarly(epoch);
  }
  TANDEM_RETURN_IF_ERROR(replication_->EndStart());
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

absl::StatusOr<RunReport> RunTraining(const JobSpec& job, const RunOptions& options,
                                      const RunContext& context) {
  TrainingRun run(job, options, context);
  return run.Run();
}

}  // namespace tandem::worker
