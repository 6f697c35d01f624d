// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_TRAINER_RUN_CHECKPOINTS_H_
#define TANDEM_WORKER_TRAINER_RUN_CHECKPOINTS_H_

// Keeps the checkpoint directory of a training run: at any time it holds checkpoints of one run only, and the
// one with the highest step is the newest. A run that overwrites another one takes its place with its first
// checkpoint (ps/checkpoint/overwrite.h).

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "ps/client/client.h"
#include "worker/job/job_spec.h"
#include "worker/trainer/model_checkpoint.h"

namespace tandem::worker {

// Used by rank 0 only; not thread-safe. All methods block on the disk.
class RunCheckpoints {
 public:
  // Returns whether a run may go on from a checkpoint, before anything is loaded.
  using Accept = absl::FunctionRef<absl::Status(const std::string& path, const v1::CheckpointManifest&)>;

  // `job` outlives this object. With `overwrite` checkpoints that the run does not continue are removed once
  // the run has saved its first one; otherwise they are a reason not to start.
  RunCheckpoints(const JobSpec* job, bool overwrite) : job_(*job), overwrite_(overwrite) {}

  // Prepares the directory for a run that starts from scratch. A refusal (IsRefusal), naming the ways out: it
  // holds checkpoints of another run.
  absl::Status StartAnew();
  // Makes the servers load a checkpoint and returns the rest of it. `from` is a checkpoint directory, or
  // "latest": the newest checkpoint of the directory that is intact. Newer ones that are damaged are reported
  // in the log and set aside (ps::SetAside). Errors:
  //
  //   - NotFound: "latest", and there is no checkpoint; or no such checkpoint
  //   - DataLoss: the checkpoint is damaged, or all of them are
  //   - a refusal (IsRefusal): the directory holds later checkpoints than `from`, or those of another run
  //   - those of `accept` and of LoadModel
  absl::StatusOr<LoadedModel> Resume(const std::string& from, ps::Client* client, Accept accept);
  // Returns the manifest of the checkpoint from which Resume goes on unless it is damaged. NotFound: there is
  // none.
  absl::StatusOr<v1::CheckpointManifest> Peek(const std::string& from) const;

  // Identifies the run in its checkpoints. A resumed run has the id of the checkpoint, if that is in the same
  // directory. Empty before StartAnew or Resume.
  const std::string& run_id() const { return run_id_; }
  // Called after a checkpoint of this run was committed. Removes the checkpoints of a run that this one
  // overwrites, and all of this run's except the newest job.checkpoint.keep (without periodic checkpoints:
  // the newest one) and `best`. A failure is only logged.
  void Prune(const std::string& best) const;
  // Returns the path of this run's checkpoint of `step`; empty if there is none.
  std::string OfStep(uint64_t step) const;

 private:
  absl::StatusOr<LoadedModel> ResumeLatest(ps::Client* client, Accept accept);
  absl::StatusOr<LoadedModel> ResumeFrom(const std::string& path, ps::Client* client, Accept accept);
  // Returns the refusal to start in a directory that holds `paths`, unless the user allows to overwrite them.
  absl::Status RefuseUnlessOverwriting(const std::vector<std::string>& paths, const std::string& why) const;
  // Announces that this run takes the place of `paths`.
  absl::Status Overwrite(const std::vector<std::string>& paths, absl::optional<uint64_t> kept_step) const;

  const JobSpec& job_;
  const bool overwrite_;
  std::string run_id_;
  std::string earlier_run_id_;  // of the checkpoints in the directory that this run continues
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_TRAINER_RUN_CHECKPOINTS_H_
