// SPDX-License-Identifier: Apache-2.0
#include "worker/trainer/model_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tandem/v1/checkpoint.pb.h"
#include "worker/job/job_parser.h"

namespace tandem::worker {
namespace {

// The schedule's state is stored among the metrics, under these names.
constexpr char kPlateauBest[] = "schedule.best";
constexpr char kPlateauBad[] = "schedule.bad_metrics";

std::string FloatBytes(absl::Span<const float> values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

v1::DenseState ToDenseState(const JobSpec& job, const ModelState& state, Model* model,
                            const DenseOptimizer& optimizer) {
  v1::DenseState dense;
  absl::Span<const float> parameters = model->parameters();
  for (const ParameterBlock& block : model->blocks()) {
    v1::DenseBlock* to = dense.add_parameters();
    to->set_name(block.name);
    for (const int size : block.shape) to->add_shape(static_cast<uint64_t>(size));
    to->set_values(FloatBytes(parameters.subspan(block.offset, block.size)));
  }
  absl::Span<const float> averages = model->running_averages();
  for (const ParameterBlock& block : model->running_average_blocks()) {
    v1::DenseBlock* to = dense.add_running_averages();
    to->set_name(block.name);
    for (const int size : block.shape) to->add_shape(static_cast<uint64_t>(size));
    to->set_values(FloatBytes(averages.subspan(block.offset, block.size)));
  }
  dense.set_optimizer(job.optimizer.kind);
  dense.set_optimizer_state(FloatBytes(optimizer.state().slots));
  dense.set_optimizer_steps(optimizer.state().steps);
  for (const auto& [table, ids] : state.replicated) {
    v1::ReplicatedIds* const to = dense.add_replicated();
    to->set_table(table);
    to->mutable_ids()->Add(ids.begin(), ids.end());
  }
  return dense;
}

ModelState ToState(const v1::CheckpointManifest& manifest) {
  ModelState state{.step = manifest.step(),
                   .epoch = manifest.epoch(),
                   .metrics = {manifest.metrics().begin(), manifest.metrics().end()},
                   .data_step = manifest.data_step(),
                   .run_id = manifest.run_id()};
  if (manifest.has_position()) state.position = manifest.position();
  if (manifest.has_best_step()) state.best_step = manifest.best_step();
  return state;
}

// Returns a manifest without the text of the job.
v1::CheckpointManifest ToManifest(const JobSpec& job, const ModelState& state, const Model& model,
                                  const LearningRateSchedule& schedule) {
  v1::CheckpointManifest manifest;
  manifest.set_job_name(job.name);
  manifest.set_step(state.step);
  manifest.set_epoch(state.epoch);
  manifest.set_model(model.kind());
  manifest.set_unix_millis(absl::ToUnixMillis(absl::Now()));
  manifest.set_run_id(state.run_id);
  *manifest.mutable_input() = state.input;
  *manifest.mutable_data() = state.data;
  manifest.set_data_step(state.data_step);
  if (state.best_step.has_value()) manifest.set_best_step(*state.best_step);
  if (state.position.has_value()) *manifest.mutable_position() = *state.position;
  auto& metrics = *manifest.mutable_metrics();
  for (const auto& [name, value] : state.metrics) {
    if (std::isfinite(value)) metrics[name] = value;
  }
  metrics[kPlateauFactorMetric] = schedule.state().plateau_factor;
  metrics[kPlateauBad] = schedule.state().bad_metrics;
  if (schedule.state().has_best) metrics[kPlateauBest] = schedule.state().best;
  return manifest;
}

// Writes and commits what the servers have not written.
absl::StatusOr<std::string> Commit(const JobSpec& job, BegunSave save,
                                   const std::vector<v1::SavedFile>& written, CheckpointChain* chain) {
  // Takes about a millisecond, so not while workers wait.
  save.manifest.set_job_text(JobToYaml(job));
  TANDEM_RETURN_IF_ERROR(ps::WriteDenseState(save.unfinished, save.dense));
  TANDEM_ASSIGN_OR_RETURN(std::string path, ps::CommitCheckpoint(save.unfinished, save.manifest, written));
  if (chain == nullptr) return path;
  const absl::StatusOr<v1::CheckpointManifest> committed = ps::ReadManifest(path);
  if (committed.ok()) chain->Committed(path, *committed);
  return path;
}

absl::Status CheckBlocks(const v1::DenseState& dense, const Model& model) {
  const std::vector<ParameterBlock>& blocks = model.blocks();
  if (dense.parameters_size() != static_cast<int>(blocks.size())) {
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint has ", dense.parameters_size(),
                                                   " dense parameter blocks, model '", model.kind(), "' has ",
                                                   blocks.size(), "; was it written by another model?"));
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const v1::DenseBlock& saved = dense.parameters(static_cast<int>(i));
    if (saved.name() == blocks[i].name && saved.values().size() == blocks[i].size * sizeof(float)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the checkpoint's block ", i, " is '", saved.name(),
                                                   "' of shape [", absl::StrJoin(saved.shape(), ", "),
                                                   "], the model's is '", blocks[i].name, "' of shape [",
                                                   absl::StrJoin(blocks[i].shape, ", "), "]"));
  }
  // A checkpoint of a model without batch normalization has none, and its parameters lack the scales.
  const std::vector<ParameterBlock>& averages = model.running_average_blocks();
  bool same = dense.running_averages_size() == static_cast<int>(averages.size());
  for (size_t i = 0; same && i < averages.size(); ++i) {
    const v1::DenseBlock& saved = dense.running_averages(static_cast<int>(i));
    same = saved.name() == averages[i].name && saved.values().size() == averages[i].size * sizeof(float);
  }
  if (same) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "the checkpoint has ", dense.running_averages_size(), " blocks of running averages, model '",
      model.kind(), "' has ", averages.size(), " or others; was it written with another 'batch_norm'?"));
}

}  // namespace

std::string LoadedModel::Serialize() const {
  v1::LoadedCheckpoint message;
  message.set_path(path);
  message.mutable_manifest()->set_step(state.step);
  message.mutable_manifest()->set_epoch(state.epoch);
  message.mutable_manifest()->set_data_step(state.data_step);
  if (state.best_step.has_value()) message.mutable_manifest()->set_best_step(*state.best_step);
  if (state.position.has_value()) *message.mutable_manifest()->mutable_position() = *state.position;
  message.mutable_manifest()->mutable_metrics()->insert(state.metrics.begin(), state.metrics.end());
  *message.mutable_dense() = dense;
  return message.SerializeAsString();
}

absl::StatusOr<LoadedModel> LoadedModel::Parse(const std::string& bytes) {
  v1::LoadedCheckpoint message;
  if (!message.ParseFromString(bytes)) return absl::DataLossError("rank 0 sent a malformed model state");
  LoadedModel loaded{.path = message.path(),
                     .state = ToState(message.manifest()),
                     .dense = std::move(*message.mutable_dense())};
  for (const v1::ReplicatedIds& table : loaded.dense.replicated()) {
    loaded.state.replicated[table.table()].assign(table.ids().begin(), table.ids().end());
  }
  return loaded;
}

absl::Status LoadedModel::Apply(Model* model, DenseOptimizer* optimizer,
                                LearningRateSchedule* schedule) const {
  const v1::DenseState& saved = dense;
  TANDEM_RETURN_IF_ERROR(Annotate(CheckBlocks(saved, *model), path));
  DenseOptimizerState slots{.steps = saved.optimizer_steps()};
  slots.slots.resize(saved.optimizer_state().size() / sizeof(float));
  std::memcpy(slots.slots.data(), saved.optimizer_state().data(), slots.slots.size() * sizeof(float));
  TANDEM_RETURN_IF_ERROR(Annotate(optimizer->Restore(std::move(slots)),
                                  absl::StrCat(path, " (optimizer '", saved.optimizer(), "')")));
  absl::Span<float> parameters = model->parameters();
  for (size_t i = 0; i < model->blocks().size(); ++i) {
    const std::string& values = saved.parameters(static_cast<int>(i)).values();
    std::memcpy(parameters.data() + model->blocks()[i].offset, values.data(), values.size());
  }
  absl::Span<float> averages = model->running_averages();
  for (size_t i = 0; i < model->running_average_blocks().size(); ++i) {
    const std::string& values = saved.running_averages(static_cast<int>(i)).values();
    std::memcpy(averages.data() + model->running_average_blocks()[i].offset, values.data(), values.size());
  }
  LearningRateState plateau;
  for (const auto& [name, value] : state.metrics) {
    if (name == kPlateauFactorMetric) plateau.plateau_factor = value;
    if (name == kPlateauBad) plateau.bad_metrics = static_cast<int>(value);
    if (name == kPlateauBest) {
      plateau.has_best = true;
      plateau.best = value;
    }
  }
  schedule->Restore(plateau);
  return absl::OkStatus();
}

absl::StatusOr<std::string> SaveModel(const JobSpec& job, const ModelState& state, ps::Client* client,
                                      Model* model, const DenseOptimizer& optimizer,
                                      const LearningRateSchedule& schedule, CheckpointChain* chain) {
  TANDEM_ASSIGN_OR_RETURN(std::string unfinished, ps::BeginCheckpoint(job.checkpoint.dir, state.step));
  const ps::SaveOptions options = chain == nullptr ? ps::SaveOptions() : chain->OptionsFor(state.step);
  TANDEM_ASSIGN_OR_RETURN(const std::vector<v1::SavedFile> written,
                          client->SaveCheckpoint(unfinished, options));
  return Commit(job,
                {.unfinished = std::move(unfinished),
                 .dense = ToDenseState(job, state, model, optimizer),
                 .manifest = ToManifest(job, state, *model, schedule)},
                written, chain);
}

absl::StatusOr<BegunSave> BeginSave(const JobSpec& job, const ModelState& state, ps::Client* client,
                                    Model* model, const DenseOptimizer& optimizer,
                                    const LearningRateSchedule& schedule, const CheckpointChain& chain) {
  std::string unfinished = ps::UnfinishedPath(job.checkpoint.dir, state.step);
  TANDEM_RETURN_IF_ERROR(client->BeginCheckpoint(unfinished, chain.OptionsFor(state.step)));
  return BegunSave{.unfinished = std::move(unfinished),
                   .dense = ToDenseState(job, state, model, optimizer),
                   .manifest = ToManifest(job, state, *model, schedule)};
}

absl::StatusOr<std::string> FinishSave(const JobSpec& job, BegunSave begun, ps::Client* client,
                                       CheckpointChain* chain, std::stop_token cancel) {
  TANDEM_RETURN_IF_ERROR(ps::BeginCheckpoint(job.checkpoint.dir, begun.manifest.step()).status());
  TANDEM_ASSIGN_OR_RETURN(
      const std::vector<v1::SavedFile> written,
      client->SaveCheckpoint(begun.unfinished, {.begun = true, .cancel = std::move(cancel)}));
  return Commit(job, std::move(begun), written, chain);
}

absl::Status UpdateModelState(const JobSpec& job, const std::string& path, const ModelState& state,
                              const Model& model, const LearningRateSchedule& schedule) {
  v1::CheckpointManifest manifest = ToManifest(job, state, model, schedule);
  manifest.set_job_text(JobToYaml(job));
  return ps::UpdateManifest(path, manifest);
}

absl::Status CheckWrittenByJob(const std::string& path, const v1::CheckpointManifest& manifest) {
  if (!manifest.job_text().empty()) return absl::OkStatus();
  if (!manifest.subscription_position().empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path,
                     " is a copy of tables that `tandem ps subscribe` has written: it has no dense part and "
                     "no job. Give a "
                     "checkpoint of `tandem train`, or export the tables with `tandem ckpt export`"));
  }
  const bool torch = std::any_of(manifest.files().begin(), manifest.files().end(),
                                 [](const v1::CheckpointFile& file) { return file.name() == "TORCH.json"; });
  if (torch) {
    return absl::InvalidArgumentError(absl::StrCat(path,
                                                   " is a checkpoint of a PyTorch program: its model is that "
                                                   "program's code, which no command of `tandem` can "
                                                   "run. Load it with tandem.torch.checkpoint.load() or "
                                                   "load_for_serving() in Python, or export its tables "
                                                   "with `tandem ckpt export`"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(path,
                   " was written by a program (client.save_checkpoint() in Python): it has tables, but no "
                   "job and no dense part. "
                   "Load it with client.load_checkpoint(), or export its tables with `tandem ckpt export`"));
}

absl::Status CheckModelKind(const JobSpec& job, const std::string& path,
                            const v1::CheckpointManifest& manifest) {
  if (manifest.model() != job.model.kind) {
    return absl::InvalidArgumentError(absl::StrCat(path, " holds a model '", manifest.model(),
                                                   "', the job trains '", job.model.kind, "'; give --model ",
                                                   manifest.model(), ", or another checkpoint directory"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedModel> LoadModel(const JobSpec& job, const std::string& path, ps::Client* client) {
  LoadedModel loaded;
  loaded.path = path;
  TANDEM_ASSIGN_OR_RETURN(v1::CheckpointManifest manifest, ps::ReadManifest(loaded.path));
  TANDEM_RETURN_IF_ERROR(CheckWrittenByJob(path, manifest));
  TANDEM_RETURN_IF_ERROR(CheckModelKind(job, path, manifest));
  TANDEM_RETURN_IF_ERROR(ps::CheckSizes(loaded.path, manifest));
  for (const v1::CheckpointFile& file : manifest.files()) {
    // The servers check the table files as they read them.
    if (!absl::EndsWith(file.name(), ".table")) {
      TANDEM_RETURN_IF_ERROR(ps::VerifyCheckpointFile(loaded.path, file));
    }
  }
  TANDEM_ASSIGN_OR_RETURN(loaded.dense, ps::ReadDenseState(loaded.path));
  TANDEM_RETURN_IF_ERROR(client->LoadCheckpoint(loaded.path));
  loaded.state = ToState(manifest);
  return loaded;
}

}  // namespace tandem::worker
