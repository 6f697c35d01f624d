// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_RUN_CHECKPOINTS_H_
#define TANDEM_WORKER_TRAINER_RUN_CHECKPOINTS_H_

// Keeps the checkpoint directory of a training run: at any time it holds checkpoints of one run only, and the
// one with the highest step is the newest.

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "ps/client/client.h"
#include "worker/job/job_spec.h"
#include "worker/trainer/model_checkpoint.h"

namespace tandem::worker {

// Used by rank 0 only; not thread-safe. All methods block on the disk.
class RunCheckpoints {
 public:
  // `job` outlives this object. With `overwrite` checkpoints that the run does not continue are removed;
  // otherwise they are a reason not to start.
  RunCheckpoints(const JobSpec* job, bool overwrite) : job_(*job), overwrite_(overwrite) {}

  // Prepares the directory for a run that starts from scratch. FailedPrecondition, naming the ways out: it
  // holds checkpoints of another run.
  absl::Status StartAnew();
  // Makes the servers load a checkpoint and returns the rest of it. `from` is a checkpoint directory, or
  // "latest": the newest checkpoint of the directory that is intact. Newer ones that are damaged are reported
  // in the log and set aside (ps::SetAside). Errors:
  //
  //   - NotFound: "latest", and there is no checkpoint; or no such checkpoint
  //   - DataLoss: the checkpoint is damaged, or all of them are
  //   - FailedPrecondition: the directory holds later checkpoints than `from`, or those of another run
  //   - those of LoadModel
  absl::StatusOr<LoadedModel> Resume(const std::string& from, ps::Client* client);

  // Identifies the run in its checkpoints. A resumed run has the id of the checkpoint, if that is in the same
  // directory. Empty before StartAnew or Resume.
  const std::string& run_id() const { return run_id_; }
  // Removes all of this run's checkpoints except the newest job.checkpoint.keep (without periodic
  // checkpoints: the newest one) and `best`. A failure is only logged.
  void Prune(const std::string& best) const;
  // Returns the path of the checkpoint that holds the model after epoch `epoch`; empty if there is none.
  std::string OfEpoch(uint64_t epoch) const;

 private:
  absl::StatusOr<LoadedModel> ResumeLatest(ps::Client* client);
  absl::StatusOr<LoadedModel> ResumeFrom(const std::string& path, ps::Client* client);
  // Removes `paths` if the user allows it, and refuses to start otherwise.
  absl::Status RemoveOrRefuse(const std::vector<std::string>& paths, const std::string& why) const;
  // Takes over the run id of a checkpoint in the directory. Gives one to the checkpoints of an older version.
  void Adopt(const LoadedModel& loaded);

  const JobSpec& job_;
  const bool overwrite_;
  std::string run_id_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_RUN_CHECKPOINTS_H_
