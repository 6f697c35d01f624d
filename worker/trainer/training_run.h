#ifndef TANDEM_WORKER_TRAINER_TRAINING_RUN_H_
#define TANDEM_WORKER_TRAINER_TRAINING_RUN_H_

// A whole training job, one worker's part of it: from a job's text to a trained model, its checkpoint and its
// report.

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
  std::string job_file;  // for the report
  // A checkpoint directory; "latest": the newest under checkpoint.dir; "auto": that, or none if there is none
  // yet, for jobs that are started again when something fails. Empty: start anew.
  std::string resume;
  bool baselines = true;  // train the plain baselines for the final table
  bool terminal = false;  // draw the progress line in place
  std::string
      predictions;  // rank 0 writes "label<TAB>probability" of every test example here; empty: nowhere
  std::string tensorboard;  // event files go to directories below this one; empty: none are written
};

// What connects this worker to the others. Everything outlives the run.
struct RunContext {
  ps::Client* client = nullptr;
  collectives::ProcessGroup* group = nullptr;  // of all workers
  Clock* clock = Clock::Real();
  rpc::ProcessStatus* status = nullptr;  // is told how the run goes; nullptr: nobody is
};

// Runs the job: the same call on every worker. Blocks until it is trained and tested. All ranks get the test
// quality and the epochs' figures; rank 0's report also has baselines and tables. Errors name the part that
// failed; nobody is left waiting longer than the job's timeouts.
absl::StatusOr<RunReport> RunTraining(const JobSpec& job, const RunOptions& options,
                                      const RunContext& context);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_TRAINING_RUN_H_
