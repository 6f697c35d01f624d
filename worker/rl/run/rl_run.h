// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_RUN_RL_RUN_H_
#define TANDEM_WORKER_RL_RUN_RL_RUN_H_

// A whole run of `tandem rl` in this process: training, evaluation, model file.

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "rpc/diagnostics/process_status.h"
#include "worker/rl/job/rl_spec.h"
#include "worker/rl/run/rl_report.h"

namespace tandem::rl {

struct RlRunOptions {
  bool silent = false;                      // no progress lines
  bool terminal = false;                    // the progress line is redrawn in place
  std::string tensorboard;                  // directory for the scalars; empty: none
  const std::atomic<bool>* stop = nullptr;  // set: the run ends soon, with the model as it is then
  // Goes on from the job's checkpoint, if there is one. A refusal (base/command_context.h) if there is none,
  // but a model.
  bool resume = false;
  // A resumed run with nothing left to train is a refusal; if false, it ends at once with its evaluation.
  bool refuse_finished = true;
  rpc::ProcessStatus* status = nullptr;  // gets the run's steps and what it does; must outlive the run
  Clock* clock = Clock::Real();
};

// Trains until the job's end, with a checkpoint now and then, when it is asked to stop and at the end,
// evaluates the final parameters greedily, saves them and returns the report. Prints progress lines to
// stdout. Runs may be concurrent if their model files and TensorBoard directories differ. Threads, and
// whether a run has the same bits each time, are as of Learner. Errors:
//
// - before the training: those of MakeLearner, and of a model file or TensorBoard directory that cannot be
//   written
//
// - in the training: none; an error of Learner::Advance is RlReport::failure, beside the curve so far
//
// - afterwards: those of Evaluate and SaveModel
absl::StatusOr<RlReport> RunRl(const RlSpec& job, const RlRunOptions& options);
// Returns the bytes of the job's checkpoint, or "" if there is none. A refusal: there is none, but a model
// that a run from the beginning would replace. Blocks on the disk.
absl::StatusOr<std::string> ReadCheckpoint(const RlSpec& job);
// Does the same as RunRl with a learner that the caller has made for this job. `resumed`: its state is that
// of a checkpoint. `ended`: nothing is left to train (RestoreCheckpoint), so only the model is saved and
// evaluated. BLAS must use one thread (worker/nn/gemm.h).
absl::StatusOr<RlReport> RunLearner(const RlSpec& job, const RlRunOptions& options, Learner* learner,
                                    bool resumed, bool ended = false);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_RUN_RL_RUN_H_
