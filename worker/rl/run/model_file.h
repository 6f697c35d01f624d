// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_RUN_MODEL_FILE_H_
#define TANDEM_WORKER_RL_RUN_MODEL_FILE_H_

// The file of a trained model, in the safetensors format: a JSON header with the names, shapes and places of
// the arrays, then the arrays in float32. The header's metadata has the job, so that the file is enough to
// run the model. Python reads it with safetensors.numpy.load_file, or with NumPy alone (docs/rl.md).

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

struct LoadedPolicy {
  RlSpec job;  // with which the model was trained
  std::unique_ptr<Policy> policy;
};

// Writes the parameters and running averages of `policy`, which was trained by `job`, and makes the directory
// if there is none. Replaces the file atomically; after an error an older file is unchanged. Blocks on the
// disk.
absl::Status SaveModel(const RlSpec& job, Policy& policy, const std::string& path);

// Writes a checkpoint of `learner`, which runs `job`: a model file that also has the state of the learner, so
// that everything that reads models reads it. Replaces the file atomically, as SaveModel does. `reached`: the
// mean return for which the run has ended before its last step, if it has.
absl::Status SaveCheckpoint(const RlSpec& job, Learner& learner, const std::string& path,
                            std::optional<double> reached = std::nullopt);
// Lets `learner`, which runs `job` and has not begun, go on from the checkpoint whose bytes are `bytes`;
// `path` is for errors. Errors: DataLoss for bytes that are no checkpoint or are damaged; InvalidArgument,
// which names what differs, for one of another environment, algorithm or policy. The learner must not be used
// after an error. Returns why nothing is left to train: the run has done all steps of `job`, or has reached
// its mean return; empty if something is left.
absl::StatusOr<std::string> RestoreCheckpoint(const RlSpec& job, const std::string& bytes,
                                              const std::string& path, Learner* learner);

// Reads a file that SaveModel has written. NotFound if there is none at `path`. DataLoss, naming what is
// wrong, if it is damaged, is no model of `tandem rl`, or has other arrays than the job's policy.
absl::StatusOr<LoadedPolicy> LoadModel(const std::string& path);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_RUN_MODEL_FILE_H_
