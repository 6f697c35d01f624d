#ifndef TANDEM_WORKER_TRAINER_MODEL_CHECKPOINT_H_
#define TANDEM_WORKER_TRAINER_MODEL_CHECKPOINT_H_

// A model as a whole on disk: the servers' tables, the workers' dense parameters, and where training was.
// Rank 0 calls these while no push is under way; the directory is one that every process sees.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/client/client.h"
#include "tandem/v1/checkpoint.pb.h"
#include "worker/job/job_spec.h"
#include "worker/models/model.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/nn/lr_schedule.h"

namespace tandem::worker {

// Where training was. The metrics are shown by `tandem ckpt ls`; the trainer also keeps its own bookkeeping
// in them.
struct ModelState {
  uint64_t step = 0;
  uint64_t epoch = 0;  // finished
  std::map<std::string, double> metrics;
};

// What rank 0 read of a checkpoint and tells the other ranks.
struct LoadedModel {
  std::string path;
  ModelState state;
  v1::DenseState dense;

  std::string Serialize() const;
  static absl::StatusOr<LoadedModel> Parse(const std::string& bytes);
  // Sets parameters, optimizer and schedule. InvalidArgument, with nothing changed, when the checkpoint is of
  // another model or optimizer: says which block differs.
  absl::Status Apply(Model* model, DenseOptimizer* optimizer, LearningRateSchedule* schedule) const;
};

// Writes and commits a checkpoint under job.checkpoint.dir; returns its path. All or nothing.
absl::StatusOr<std::string> SaveModel(const JobSpec& job, const ModelState& state, ps::Client* client,
                                      Model* model, const DenseOptimizer& optimizer,
                                      const LearningRateSchedule& schedule);
// Has the servers load the tables of `path` ("latest": the newest under job.checkpoint.dir) and reads the
// rest.
absl::StatusOr<LoadedModel> LoadModel(const JobSpec& job, const std::string& path, ps::Client* client);
// Removes all but the newest job.checkpoint.keep checkpoints and `best`.
void PruneModels(const JobSpec& job, const std::string& best);
// The checkpoint of epoch `epoch` under job.checkpoint.dir; empty when there is none.
std::string CheckpointOfEpoch(const JobSpec& job, uint64_t epoch);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_MODEL_CHECKPOINT_H_
