// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <future>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/command_context.h"
#include "base/logging.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "worker/trainer/data_identity.h"
#include "worker/trainer/training_run_impl.h"

namespace tandem::worker {
namespace {

v1::InputState InputOf(const Dataset& dataset, int workers) {
  v1::InputState input;
  const InputStatistics& statistics = dataset.statistics();
  for (size_t d = 0; d < statistics.dense.size(); ++d) {
    v1::DenseInput* dense = input.add_dense();
    dense->set_column(dataset.schema().dense[d].column);
    dense->set_mean(statistics.dense[d].mean);
    dense->set_scale(statistics.dense[d].scale);
    dense->set_measured(statistics.dense[d].measured);
  }
  input.set_index_features(static_cast<uint32_t>(statistics.index_features));
  input.set_workers(static_cast<uint32_t>(workers));
  return input;
}

}  // namespace

absl::StatusOr<DatasetOptions> TrainingRun::DataOptions() {
  DatasetOptions data = job_.data;
  if (options_.resume.empty()) return data;
  std::string bytes;
  if (is_leader()) {
    // If there is no such checkpoint, Resume says so.
    const absl::StatusOr<v1::CheckpointManifest> manifest = checkpoints_.Peek(ResumeFrom());
    if (manifest.ok() && manifest->has_input()) bytes = manifest->input().SerializeAsString();
  }
  TANDEM_ASSIGN_OR_RETURN(bytes, context_.group->BroadcastBytes(bytes));
  v1::InputState input;
  if (!input.ParseFromString(bytes))
    return absl::DataLossError("rank 0 sent malformed statistics of the data");
  if (!bytes.empty()) data.statistics = StatisticsOf(input);
  return data;
}

absl::Status TrainingRun::Accept(const std::string& path, const v1::CheckpointManifest& manifest) {
  TANDEM_RETURN_IF_ERROR(CheckWrittenByJob(path, manifest));
  TANDEM_ASSIGN_OR_RETURN(continuation_, ContinueFrom(path, manifest, data_, options_.data_changed));
  nothing_ = WhyNothingToTrain(job_, manifest, continuation_);
  return absl::OkStatus();
}

absl::Status TrainingRun::RefuseIfNothingToTrain(const std::string& path) const {
  if (nothing_.empty()) return absl::OkStatus();
  if (options_.resume == "auto") {
    // A supervisor that starts a finished job again learns that it has finished.
    LogInfo(absl::StrCat("nothing to train after ", path, ": ", nothing_));
    return absl::OkStatus();
  }
  return Refusal(
      absl::StrCat("nothing to train after ", path, ": ", nothing_,
                   ", or on other data with --set data.train=FILE --data-changed, or use the model: "
                   "tandem eval ",
                   job_.checkpoint.dir));
}

absl::Status TrainingRun::Begin() {
  bool anew = options_.resume.empty();
  absl::Status begun;
  if (is_leader()) {
    absl::StatusOr<v1::DataIdentity> data = IdentifyData(
        job_.data, *dataset_,
        {.shuffle = job_.shuffle, .shuffle_buffer = job_.shuffle_buffer, .seed = job_.train.seed});
    begun = data.status();
    if (data.ok()) data_ = *std::move(data);
  }
  if (is_leader() && begun.ok()) {
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
  const auto resume = [this]() -> absl::StatusOr<LoadedModel> {
    TANDEM_ASSIGN_OR_RETURN(LoadedModel loaded,
                            checkpoints_.Resume(ResumeFrom(), context_.client,
                                                [this](const std::string& path, const auto& manifest) {
                                                  return Accept(path, manifest);
                                                }));
    // Only now: the newest checkpoint may be damaged, and leave the end of the run to be trained again.
    TANDEM_RETURN_IF_ERROR(RefuseIfNothingToTrain(loaded.path));
    if (!continuation_.differences.empty()) {
      LogInfo(absl::StrCat("--data-changed: ", loaded.path, " was trained on other data: ",
                           absl::StrJoin(continuation_.differences, "; "), ". ",
                           continuation_.other_data ? "Epochs, position and the best model start anew"
                                                    : "The best model starts anew"));
    }
    BeginAnew(continuation_, &loaded.state);
    return loaded;
  };
  ModelState state;
  TANDEM_RETURN_IF_ERROR(Load(resume, &state));
  first_epoch_ = static_cast<int>(state.epoch) + 1;
  data_step_ = state.data_step;
  best_step_ = state.best_step;
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
  if (is_leader() && best_step_.has_value()) best_checkpoint_ = checkpoints_.OfStep(*best_step_);
  return absl::OkStatus();
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

ModelState TrainingRun::StateAfter(int epochs) const {
  return {.step = trainer_->step(),
          .epoch = static_cast<uint64_t>(epochs),
          .metrics = {{"best_metric", best_metric_},
                      {"best_epoch", report_.best_epoch},
                      {"epochs_since_best", epochs_since_best_}},
          .data_step = data_step_,
          .best_step = best_step_,
          .run_id = checkpoints_.run_id(),
          .input = InputOf(*dataset_, world_size_),
          .data = data_};
}

absl::StatusOr<std::string> TrainingRun::SaveAgain(const ModelState& complete) {
  constexpr int kAttempts = 10;  // each failure is the death of a server, or another process dropped a table
  for (int attempt = 1;; ++attempt) {
    absl::StatusOr<std::string> path =
        SaveModel(job_, complete, context_.client, model_.get(), *optimizer_, *schedule_, &chain_);
    const bool may_come_back = job_.ps.durability != ServerDurability::kOff;
    const bool passes =
        absl::IsAborted(path.status()) || (may_come_back && absl::IsUnavailable(path.status()));
    if (!passes || attempt == kAttempts) return path;
    LogWarning(absl::StrCat("the checkpoint of step ", complete.step,
                            " is written again: ", path.status().message()));
    // Waits until all servers answer again: this call is repeated at a shard's next primary, SaveCheckpoint
    // is not.
    TANDEM_RETURN_IF_ERROR(context_.client->ListServers().status());
  }
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
      path = SaveAgain(complete);
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
  return NoteSaved(state.step, ok[0] == 1.0, saved);
}

absl::StatusOr<bool> TrainingRun::NoteSaved(uint64_t step, bool ok, const absl::Status& status) {
  if (ok) {
    saved_step_ = step;
    report_.save_error.clear();
    return true;
  }
  const bool goes_on = job_.checkpoint.on_failure == SaveFailure::kContinue;
  if (!is_leader()) {
    if (goes_on) return false;
    return absl::AbortedError("rank 0 could not save a checkpoint; its log says why");
  }
  const absl::Status failed = Annotate(status, absl::StrCat("saving the checkpoint of step ", step));
  if (!goes_on) return failed;
  report_.save_error = std::string(failed.message());
  LogError(absl::StrCat(failed.message(),
                        "; training goes on (checkpoint.on_failure: continue), and resumes from the "
                        "checkpoint before if it fails now"));
  return false;
}

absl::Status TrainingRun::TakeAsyncSave() {
  if (!async_save_.valid()) return absl::OkStatus();
  const absl::StatusOr<std::string> path = async_save_.get();
  if (path.ok()) saved_path_ = *path;
  return path.status();
}

absl::StatusOr<BegunSave> TrainingRun::FixAsyncSave(const ModelState& state) {
  ModelState complete = state;
  TANDEM_ASSIGN_OR_RETURN(complete.replicated, replication_->WriteBack());
  absl::StatusOr<BegunSave> begun =
      BeginSave(job_, complete, context_.client, model_.get(), *optimizer_, *schedule_, chain_);
  if (begun.ok()) return begun;
  // Servers that had begun have applied what their GBA tables had accumulated. All must do so.
  for (const v1::TableConfig& table : plan_.tables) context_.client->Flush(table.name()).IgnoreError();
  return begun;
}

void TrainingRun::WriteAsyncSave(BegunSave begun) {
  async_save_ = std::async(
      std::launch::async,
      [this, begun = std::move(begun), best = best_checkpoint_]() mutable -> absl::StatusOr<std::string> {
        TANDEM_ASSIGN_OR_RETURN(std::string path, FinishSave(job_, std::move(begun), context_.client, &chain_,
                                                             abandon_async_save_.get_token()));
        checkpoints_.Prune(best);
        return path;
      });
}

void TrainingRun::EndAsyncSave() {
  if (!async_save_.valid() || async_save_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    return;
  }
  LogWarning(absl::StrCat("the run ends while the checkpoint of step ", async_step_,
                          " is being written; waiting for it, at most ",
                          absl::FormatDuration(job_.train.timeout)));
  if (async_save_.wait_for(absl::ToChronoNanoseconds(job_.train.timeout)) == std::future_status::ready)
    return;
  LogError(absl::StrCat("the checkpoint of step ", async_step_, " is given up: it is not written after ",
                        absl::FormatDuration(job_.train.timeout)));
  abandon_async_save_.request_stop();
}

absl::Status TrainingRun::BeginAsyncSave(const ModelState& state) {
  constexpr double kOk = 1, kFailed = 2, kBusy = 3, kUnknown = 4;  // kBusy: an earlier one is being written
  double results[] = {kOk, kOk};  // of the checkpoint before, and of this one
  absl::Status finished;
  absl::StatusOr<BegunSave> begun = absl::UnknownError("not rank 0");
  if (is_leader()) {
    if (async_save_.valid() && async_save_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
      results[0] = kBusy;
    } else {
      finished = TakeAsyncSave();
      begun = FixAsyncSave(state);
      results[0] = finished.ok() ? kOk : kFailed;
      results[1] = begun.ok()                              ? kOk
                   : absl::IsUnimplemented(begun.status()) ? kUnknown
                   : absl::IsAlreadyExists(begun.status()) ? kBusy
                                                           : kFailed;
    }
  }
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(results), CheckpointTimeout()));
  boundary_.NoteCheckpoint();
  if (results[0] == kBusy) {
    ++report_.skipped_checkpoints;
    if (is_leader()) {
      LogWarning(absl::StrCat("the checkpoint of step ", state.step, " is left out: that of step ",
                              async_step_, " is still being written"));
    }
    return absl::OkStatus();
  }
  if (async_step_ != 0) {
    TANDEM_RETURN_IF_ERROR(NoteSaved(std::exchange(async_step_, 0), results[0] == kOk, finished).status());
  }
  if (results[1] == kUnknown) {
    async_saves_ = false;
    if (is_leader()) {
      LogWarning("checkpoint.async_save has no effect: a parameter server is of an older version");
    }
    return SaveCheckpoint(state).status();
  }
  if (results[1] == kBusy) {  // servers write one that this run has given up, or that another process began
    ++report_.skipped_checkpoints;
    if (is_leader()) {
      LogWarning(
          absl::StrCat("the checkpoint of step ", state.step, " is left out: ", begun.status().message()));
    }
    return absl::OkStatus();
  }
  if (results[1] == kFailed) return NoteSaved(state.step, false, begun.status()).status();
  async_step_ = state.step;
  // Only now, so that the servers do not take processor time from workers that are about to go on.
  if (is_leader()) WriteAsyncSave(*std::move(begun));
  return absl::OkStatus();
}

absl::Status TrainingRun::FinishAsyncSave() {
  if (async_step_ == 0) return absl::OkStatus();
  absl::Status finished;
  if (is_leader()) finished = TakeAsyncSave();
  double ok[] = {finished.ok() ? 1.0 : 0.0};
  TANDEM_RETURN_IF_ERROR(BroadcastFromLeader(absl::MakeSpan(ok), CheckpointTimeout()));
  return NoteSaved(std::exchange(async_step_, 0), ok[0] == 1.0, finished).status();
}

void TrainingRun::CompleteCheckpoint(const ModelState& state) {
  if (saved_path_.empty()) return;
  const absl::Status updated = UpdateModelState(job_, saved_path_, state, *model_, *schedule_);
  if (updated.ok()) return;
  // The checkpoint is good; a run that resumes from it evaluates the epoch again.
  LogError(absl::StrCat("recording the evaluation in ", saved_path_, ": ", updated.message()));
}

}  // namespace tandem::worker
