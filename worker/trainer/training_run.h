// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_TRAINING_RUN_H_
#define TANDEM_WORKER_TRAINER_TRAINING_RUN_H_

// Runs one worker's part of a whole training job, from the job file to a trained model, its checkpoint and
// its report.

#include <atomic>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "collectives/process_group.h"
#include "ps/client/client.h"
#include "rpc/diagnostics/process_status.h"
#include "worker/job/job_spec.h"
#include "worker/report/report.h"

namespace tandem::worker {

struct RunOptions {
  std::string job_file;  // name of the job file, for the report
  // The checkpoint to resume from:
  //
  // - a checkpoint directory,
  // - "latest": the newest intact checkpoint under checkpoint.dir (RunCheckpoints::Resume),
  // - "auto": like "latest", but starts from scratch if there is no checkpoint yet; for jobs that a
  //   supervisor restarts after a failure,
  // - empty: starts from scratch.
  std::string resume;
  // Accepts that the training data, the validation data or the features are others than those of the
  // checkpoint, which is a refusal otherwise. Rows, parameters, the optimizer's state, the means of
  // standardized columns and the number of the step stay. Epochs, the position in the data, the learning-rate
  // schedule, early stopping and the best model start anew (with other validation data alone: the last two).
  // Without effect if the data is the same.
  bool data_changed = false;
  // Removes the checkpoints in checkpoint.dir that the run does not continue, once it has saved its first
  // one: those of another run, or those after the one to resume from. Otherwise such checkpoints are a
  // refusal.
  bool overwrite = false;
  bool baselines = true;  // train the simple baselines for the final table
  bool terminal = false;  // redraw the progress line in place
  // Rank 0 writes "label<TAB>probability" of every test example to this file. Empty: nothing is written.
  std::string predictions;
  // Parent directory of the TensorBoard event files. Empty: none are written.
  std::string tensorboard;
};

// This worker's connections to the other processes. All objects must outlive the run.
struct RunContext {
  ps::Client* client = nullptr;
  collectives::ProcessGroup* group = nullptr;  // includes all workers
  Clock* clock = Clock::Real();
  // Receives state, epoch and step of the run; may be nullptr.
  rpc::ProcessStatus* status = nullptr;
  // Becomes true when this worker is asked to stop (SIGTERM). All workers then stop after the same step, save
  // a checkpoint and return a report with `interrupted`. nullptr on all workers or on none: never asked.
  const std::atomic<bool>* stop = nullptr;
};

// Runs the job. Every worker must make the same call. Blocks until the model is trained and tested. All ranks
// get the test quality and the metrics of the epochs; only rank 0's report contains baselines, tables and
// staleness. An error names the part that failed; then no other rank waits longer than the job's timeouts.
// Rank 0's error is a refusal (base/command_context.h) in these cases: checkpoint.dir holds another run, the
// data is not that of the checkpoint, or nothing is left to train (unless `resume` is "auto"; then the model
// is tested).
//
// A checkpoint at the end of an epoch is saved before the epoch is evaluated, so that no error of the
// evaluation loses the training. Without a metric to choose by (no validation data, or AUC of examples of one
// class), the newest epoch counts as the best.
absl::StatusOr<RunReport> RunTraining(const JobSpec& job, const RunOptions& options,
                                      const RunContext& context);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TRAINING_RUN_H_
