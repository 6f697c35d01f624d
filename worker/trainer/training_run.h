// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_TRAINING_RUN_H_
#define TANDEM_WORKER_TRAINER_TRAINING_RUN_H_

// Runs one worker's part of a whole training job, from the job file to a trained model, its checkpoint and
// its report.

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
  // - "latest": the newest checkpoint under checkpoint.dir,
  // - "auto": like "latest", but starts from scratch if there is no checkpoint yet; for jobs that a
  //   supervisor restarts after a failure,
  // - empty: starts from scratch.
  std::string resume;
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
};

// Runs the job. Every worker must make the same call. Blocks until the model is trained and tested. All ranks
// get the test quality and the metrics of the epochs; only rank 0's report contains baselines, tables and
// staleness. An error names the part that failed; then no other rank waits longer than the job's timeouts.
absl::StatusOr<RunReport> RunTraining(const JobSpec& job, const RunOptions& options,
                                      const RunContext& context);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TRAINING_RUN_H_
