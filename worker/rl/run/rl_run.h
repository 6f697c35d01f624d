// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_RUN_RL_RUN_H_
#define TANDEM_WORKER_RL_RUN_RL_RUN_H_

// A whole run of `tandem rl` in this process: training, evaluation, model file.

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/run/rl_report.h"

namespace tandem::rl {

struct RlRunOptions {
  bool silent = false;                      // no progress lines
  bool terminal = false;                    // the progress line is redrawn in place
  std::string tensorboard;                  // directory for the scalars; empty: none
  const std::atomic<bool>* stop = nullptr;  // set: the run ends soon, with the model as it is then
  Clock* clock = Clock::Real();
};

// Trains until the job's end, evaluates the final parameters greedily, saves them and returns the report.
// Prints progress lines to stdout. Uses only the calling thread; runs may be concurrent if their model files
// and TensorBoard directories differ. A run is a function of the job: its parameters have the same bits each
// time. Errors: those of MakeLearner, Learner::Advance, Evaluate and SaveModel, and Unavailable for a
// TensorBoard directory that cannot be written.
absl::StatusOr<RlReport> RunRl(const RlSpec& job, const RlRunOptions& options);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_RUN_RL_RUN_H_
