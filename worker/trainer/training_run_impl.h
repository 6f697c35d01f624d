// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_TRAINING_RUN_IMPL_H_
#define TANDEM_WORKER_TRAINER_TRAINING_RUN_IMPL_H_

// The class behind RunTraining. Private to worker/trainer. Its methods are in several sources, by role:
//
//   - training_run.cc: preparation, the loop over epochs
//   - training_epoch.cc: one epoch
//   - training_checkpoints.cc: beginning, resuming, saving
//   - training_evaluation.cc: evaluation, test, what the report says of tables

#include <algorithm>
#include <cstdint>
#include <future>
#include <limits>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/data/dataset.h"
#include "worker/data/prefetch_reader.h"
#include "worker/evaluation/metrics.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/lr_schedule.h"
#include "worker/report/progress.h"
#include "worker/report/training_scalars.h"
#include "worker/step/hybrid_trainer.h"
#include "worker/trainer/boundary_agreement.h"
#include "worker/trainer/checkpoint_chain.h"
#include "worker/trainer/continuation.h"
#include "worker/trainer/model_checkpoint.h"
#include "worker/trainer/replication.h"
#include "worker/trainer/run_checkpoints.h"
#include "worker/trainer/training_plan.h"
#include "worker/trainer/training_run.h"

namespace tandem::worker {

inline constexpr size_t kReadAhead = 4;  // batches parsed ahead

// One training run on this worker. Not thread-safe.
class TrainingRun {
 public:
  TrainingRun(const JobSpec& job, const RunOptions& options, const RunContext& context)
      : job_(job),
        options_(options),
        context_(context),
        rank_(context.group->rank()),
        world_size_(context.group->world_size()),
        checkpoints_(&job_, options.overwrite),
        chain_(job.checkpoint.dir, job.checkpoint.deltas),
        boundary_(context.group, context.stop, job.checkpoint.every_time, context.clock),
        progress_(rank_ != 0, options.terminal, job.train.log_every, context.clock),
        scalars_(job.train.log_every, context.clock) {}

  // Waits for a checkpoint that is being written because the run has ended with an error; at most
  // train.timeout, then gives it up.
  ~TrainingRun() { EndAsyncSave(); }

  absl::StatusOr<RunReport> Run();

 private:
  bool is_leader() const { return rank_ == 0; }
  // The checkpoint from which to resume, as RunCheckpoints::Resume takes it.
  std::string ResumeFrom() const { return options_.resume == "auto" ? "latest" : options_.resume; }
  // The step as the learning-rate schedule counts, which begins anew on other data.
  uint64_t ScheduleStep(uint64_t step) const { return step - std::min(step, data_step_); }
  absl::Status Prepare();
  // Starts from scratch or from a checkpoint, and takes a push epoch.
  absl::Status Begin();
  absl::Status Resume();
  // Returns how the data is to be opened: with the statistics of the checkpoint from which the run resumes,
  // if any. Called by every rank.
  absl::StatusOr<DatasetOptions> DataOptions();
  // Rank 0: decides whether and how the run goes on from a checkpoint.
  absl::Status Accept(const std::string& path, const v1::CheckpointManifest& manifest);
  // Rank 0: returns a refusal if the checkpoint that was loaded leaves nothing to train; only says so with
  // --resume auto.
  absl::Status RefuseIfNothingToTrain(const std::string& path) const;
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
  // Writes a checkpoint; called by rank 0. Writes it again if a server died meanwhile: its follower or log
  // has the same tables, as no push is in flight. Also if another process created or dropped a table
  // meanwhile.
  absl::StatusOr<std::string> SaveAgain(const ModelState& complete);
  // Begins to save a checkpoint that is written while training goes on; leaves it out if the one before is
  // still being written. Takes over the result of that one. Called by every rank.
  absl::Status BeginAsyncSave(const ModelState& state);
  // Waits until the checkpoint that was begun, if any, is written. Called by every rank.
  absl::Status FinishAsyncSave();
  // Rank 0: returns the result of the checkpoint that is being written; OK if there is none. Blocks until it
  // is written.
  absl::Status TakeAsyncSave();
  // Rank 0: fixes the contents of a checkpoint on the servers; writes them on another thread.
  absl::StatusOr<BegunSave> FixAsyncSave(const ModelState& state);
  void WriteAsyncSave(BegunSave begun);
  void EndAsyncSave();
  // Notes whether the checkpoint of `step` was saved. `ok` is the same on all ranks, `status` is rank 0's.
  // Returns false if it was not and the job goes on.
  absl::StatusOr<bool> NoteSaved(uint64_t step, bool ok, const absl::Status& status);
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
  // Returns whether the epochs since the best one are enough to stop, after `epoch`.
  bool ShouldStopEarly(int epoch) const;
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
  CheckpointChain chain_;       // rank 0 only
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
  uint64_t data_step_ = 0;     // at which the training on this data began
  v1::DataIdentity data_;      // rank 0
  Continuation continuation_;  // rank 0: of the checkpoint from which the run resumes
  std::string nothing_;  // rank 0: why that checkpoint leaves nothing to train; empty: it leaves something
  uint64_t saved_step_ = 0;  // step of the last checkpoint that was saved or loaded, on all ranks
  std::string saved_path_;   // rank 0: its path; empty if it is not in checkpoint.dir
  bool async_saves_ = job_.checkpoint.async_save;
  uint64_t async_step_ = 0;              // of the checkpoint that is being written, on all ranks; 0: none
  std::stop_source abandon_async_save_;  // rank 0
  // Rank 0: the path of that checkpoint. The members that it uses come first, so that they outlive it.
  std::future<absl::StatusOr<std::string>> async_save_;
  double best_metric_ = -std::numeric_limits<double>::infinity();
  int epochs_since_best_ = 0;
  absl::optional<uint64_t> best_step_;  // after the best epoch
  std::string best_checkpoint_;
  std::string loaded_path_;                          // rank 0
  bool warned_of_[2] = {false, false};               // of a split without AUC: test, validation
  double staleness_sum_ = 0, staleness_pushes_ = 0;  // totals up to the end of the last epoch
  RunReport report_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TRAINING_RUN_IMPL_H_
