// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "ps/table.h"
#include "worker/data/prefetch_reader.h"
#include "worker/trainer/segment_reader.h"
#include "worker/trainer/training_run_impl.h"

namespace tandem::worker {
namespace {

using collectives::ReduceOp;

}  // namespace

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
    absl::Time step_end = MonotonicNow();
    TANDEM_ASSIGN_OR_RETURN(const PassStats stats, trainer_->Train(&segment, [&](const StepReport& step) {
      if (context_.status != nullptr) context_.status->SetStep(step.step + 1);
      scalars_.Step(step, schedule_->At(ScheduleStep(step.step)));
      if (agreed.ok()) agreed = replication_->AfterStep(&report_);
      progress_.Step(step.examples * static_cast<uint64_t>(world_size_), step.loss,
                     [this] { return MeasuredStaleness(); });
      if (agreed.ok()) agreed = boundary_.AfterStep(&segment);
      step_end = MonotonicNow();
    }));
    TANDEM_RETURN_IF_ERROR(agreed);
    total.Add(stats);
    // Fewer batches than there should be: lines could not be parsed.
    if (segment.batches() == begin || segment.batches() < segment.end()) break;
    if (segment.batches() == steps_per_epoch_) break;
    // The servers apply what GBA tables have accumulated when they begin to save.
    if (!async_saves_) TANDEM_RETURN_IF_ERROR(ApplyDeferred());
    // No worker passes this before the pushes of all workers are acknowledged.
    TANDEM_ASSIGN_OR_RETURN(const v1::DataPosition position, PositionAfter(segment.batches(), total));
    ModelState state = StateAfter(epoch - 1);
    state.position = position;
    if (async_saves_) {
      TANDEM_RETURN_IF_ERROR(BeginAsyncSave(state));
    } else {
      TANDEM_RETURN_IF_ERROR(SaveCheckpoint(state).status());
    }
    // A worker that was asked to stop since the last comparison of notes finds out soon, and another one
    // would hold all of them.
    bool stop = boundary_.stop_noted();
    if (!async_saves_) {
      TANDEM_ASSIGN_OR_RETURN(stop, boundary_.MustStop());
    }
    if (stop) {
      TANDEM_RETURN_IF_ERROR(FinishAsyncSave());
      bool saved = saved_step_ == state.step;
      if (!saved && async_saves_) {
        TANDEM_ASSIGN_OR_RETURN(saved, SaveCheckpoint(state));
      }
      if (!saved) return absl::AbortedError("asked to stop, and the checkpoint could not be saved");
      report_.interrupted = true;
      return total;
    }
    SetState("training");
    report_.checkpoint_holds.push_back(absl::ToDoubleSeconds(MonotonicNow() - step_end));
  }
  TANDEM_RETURN_IF_ERROR(FinishAsyncSave());
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
  TANDEM_RETURN_IF_ERROR(replication_->AddEpoch(*stats, trainer_->served(), &report_));
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
  entry.learning_rate = schedule_->At(ScheduleStep(trainer_->step()));
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
    best_step_ = trainer_->step();
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

Progress::Staleness TrainingRun::MeasuredStaleness() {
  if (replication_->starting()) return Progress::Staleness::SynchronousStart();
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

}  // namespace tandem::worker
