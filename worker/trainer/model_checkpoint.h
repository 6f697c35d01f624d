// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_MODEL_CHECKPOINT_H_
#define TANDEM_WORKER_TRAINER_MODEL_CHECKPOINT_H_

// Saves and loads a complete model: the servers' tables, the workers' dense parameters, and the state of the
// training run. Only rank 0 calls SaveModel, UpdateModelState and LoadModel, while no push is in flight.
// Every process must see the checkpoint directory at the same path. worker/trainer/run_checkpoints.h decides
// which checkpoints a run keeps.

#include <cstdint>
#include <map>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ps/client/client.h"
#include "tandem/v1/checkpoint.pb.h"
#include "worker/job/job_spec.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/lr_schedule.h"
#include "worker/trainer/checkpoint_chain.h"

namespace tandem::worker {

// State of a training run. `tandem ckpt ls` shows the metrics; the trainer also stores its own bookkeeping in
// them.
struct ModelState {
  uint64_t step = 0;
  uint64_t epoch = 0;  // epochs trained and evaluated completely, on this data
  // Where the run is in the next epoch; absent at the start of that epoch. All batches may be trained: then
  // the epoch's evaluation is still to be done.
  absl::optional<v1::DataPosition> position;
  std::map<std::string, double> metrics;  // those that are not finite are not saved
  uint64_t data_step = 0;                 // at which the training on this data began
  absl::optional<uint64_t> best_step;     // after the best epoch on this data; absent: none has ended
  std::string run_id;                     // not sent to the other ranks
  // The rows that workers replicate, by table.
  std::map<std::string, std::vector<uint64_t>> replicated;
  // Saved, but not part of what LoadModel returns.
  v1::InputState input;
  v1::DataIdentity data;
};

// The name of the factor of the schedule reduce_on_plateau among ModelState::metrics.
inline constexpr char kPlateauFactorMetric[] = "schedule.plateau_factor";

// The part of a checkpoint that rank 0 reads and sends to the other ranks.
struct LoadedModel {
  std::string path;
  ModelState state;
  v1::DenseState dense;

  std::string Serialize() const;
  static absl::StatusOr<LoadedModel> Parse(const std::string& bytes);
  // Sets parameters, optimizer and schedule. Returns InvalidArgument, with nothing changed, if the checkpoint
  // belongs to another model or optimizer; the error names the block that differs.
  absl::Status Apply(Model* model, DenseOptimizer* optimizer, LearningRateSchedule* schedule) const;
};

// Writes a checkpoint under job.checkpoint.dir, commits it and returns its path. `chain`, unless it is
// nullptr, decides whether it builds on the one before. After an error the new checkpoint is not committed;
// older ones are unchanged.
absl::StatusOr<std::string> SaveModel(const JobSpec& job, const ModelState& state, ps::Client* client,
                                      Model* model, const DenseOptimizer& optimizer,
                                      const LearningRateSchedule& schedule, CheckpointChain* chain = nullptr);
// A checkpoint that the servers write while training goes on. A plain value.
struct BegunSave {
  std::string unfinished;  // the directory that FinishSave makes
  v1::DenseState dense;
  v1::CheckpointManifest manifest;  // without the text of the job
};
// Begins to save a checkpoint as SaveModel does, and returns once every server has fixed its contents.
// Training may then go on. FinishSave does the rest. Errors as of ps::Client::BeginCheckpoint.
absl::StatusOr<BegunSave> BeginSave(const JobSpec& job, const ModelState& state, ps::Client* client,
                                    Model* model, const DenseOptimizer& optimizer,
                                    const LearningRateSchedule& schedule, const CheckpointChain& chain);
// Makes the servers write the checkpoint, commits it and returns its path. May run on another
// thread than the training. `chain` is that of BeginSave; nothing else may use it meanwhile. Cancelled: a
// stop of `cancel` was requested before the servers had written their files.
absl::StatusOr<std::string> FinishSave(const JobSpec& job, BegunSave begun, ps::Client* client,
                                       CheckpointChain* chain, std::stop_token cancel = {});
// Replaces the state of the run in the committed checkpoint `path`; the model stays. After an error the old
// state is in place.
absl::Status UpdateModelState(const JobSpec& job, const std::string& path, const ModelState& state,
                              const Model& model, const LearningRateSchedule& schedule);
// Returns InvalidArgument, which says what the checkpoint is and what to do, unless `tandem train` has
// written it.
absl::Status CheckWrittenByJob(const std::string& path, const v1::CheckpointManifest& manifest);
// Returns InvalidArgument unless the checkpoint holds the kind of model that the job trains.
absl::Status CheckModelKind(const JobSpec& job, const std::string& path,
                            const v1::CheckpointManifest& manifest);
// Makes the servers load the tables of checkpoint `path` and reads the rest of it. Compares every file with
// the manifest: rank 0 the file DENSE, each server what it loads. DataLoss: a file is missing or damaged.
// InvalidArgument: the checkpoint holds another kind of model than the job's, or no job has written it.
absl::StatusOr<LoadedModel> LoadModel(const JobSpec& job, const std::string& path, ps::Client* client);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_MODEL_CHECKPOINT_H_
