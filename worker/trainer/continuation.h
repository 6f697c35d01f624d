// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_CONTINUATION_H_
#define TANDEM_WORKER_TRAINER_CONTINUATION_H_

// Decides how a run goes on from a checkpoint: where it stopped, anew on other data, or not at all.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tandem/v1/checkpoint.pb.h"
#include "worker/data/dataset.h"
#include "worker/job/job_spec.h"
#include "worker/trainer/model_checkpoint.h"

namespace tandem::worker {

struct Continuation {
  // The training data or the features are others: epochs, position, schedule and the best model start anew.
  bool other_data = false;
  // The validation data is other: the best model starts anew.
  bool other_validation = false;
  std::vector<std::string> differences;  // phrases for messages
};

// Compares the data of the checkpoint at `path` with that of the run, `now`. Returns a refusal
// (base/command_context.h) that names what differs, unless `data_changed` accepts it.
absl::StatusOr<Continuation> ContinueFrom(const std::string& path, const v1::CheckpointManifest& checkpoint,
                                          const v1::DataIdentity& now, bool data_changed);
// Changes the state that a checkpoint holds to that in which the run begins. Rows, parameters, the
// optimizer's state and the number of the step stay.
void BeginAnew(const Continuation& continuation, ModelState* state);
// Returns why nothing is left to train after a checkpoint: its run has trained all epochs, or has stopped
// early. Empty: something is left.
std::string WhyNothingToTrain(const JobSpec& job, const v1::CheckpointManifest& checkpoint,
                              const Continuation& continuation);

// Returns the statistics of the data with which the model of a checkpoint was trained.
InputStatistics StatisticsOf(const v1::InputState& input);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_CONTINUATION_H_
