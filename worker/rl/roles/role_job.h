// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_ROLE_JOB_H_
#define TANDEM_WORKER_RL_ROLES_ROLE_JOB_H_

// The place of a process in a job of several roles (`tandem run --learners 1 --replay 1 --actors 4`), and the
// servers of that job.

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/wait_log.h"
#include "cluster/environment.h"
#include "cluster/member.h"
#include "collectives/process_group.h"
#include "rpc/channel.h"

namespace tandem::rl {

inline constexpr char kLearnerRole[] = "learner", kActorRole[] = "actor", kReplayRole[] = "replay",
                      kInferenceRole[] = "inference";

// Not thread-safe, except as noted.
class RoleJob {
 public:
  // Reads the launcher's variables and joins the job. Blocks at most `timeout`. A learner's process ends with
  // code 1 as soon as its job has failed elsewhere; other roles outlive learners. `process`: as
  // cluster::MemberOptions::process. Errors: those of Environment::FromEnv and Member::Join; InvalidArgument
  // for a role that `tandem rl` does not have, and if the learners are not the main role.
  static absl::StatusOr<std::unique_ptr<RoleJob>> Open(absl::Duration timeout,
                                                       cluster::Process* process = nullptr);

  cluster::Member& member() { return *member_; }
  const cluster::Environment& environment() const { return member_->env(); }
  bool is(absl::string_view role) const { return environment().role == role; }
  // Returns a number that tells the lives of this process apart: 0 in the first one under `tandem run`.
  // Without a launcher, which counts the lives, it is a random number.
  uint64_t life() const { return life_; }
  cluster::Store& store() { return *member_->store(); }
  // Logs the waits of this process for others. Thread-safe.
  WaitLog& waits() { return member_->waits(); }

  // Returns how many servers of `role` the job has. Blocks until one has registered, at most `timeout`.
  // DeadlineExceeded says how to start one.
  absl::StatusOr<int> Servers(absl::string_view role, absl::Duration timeout);
  // Connects to server `index` of `role`. Blocks until it has registered, at most `timeout`.
  absl::StatusOr<std::shared_ptr<rpc::Channel>> Connect(absl::string_view role, int index,
                                                        absl::Duration timeout);

  // Returns the group of the learners. Blocks until all have come, at most `timeout`, which also bounds each
  // operation.
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> LearnerGroup(absl::Duration timeout);
  // Leaves the job. Blocks at most 10 s, and 1 s in roles other than learner.
  void Close();

 private:
  RoleJob() = default;

  uint64_t life_ = 0;
  std::unique_ptr<cluster::Member> member_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_ROLE_JOB_H_
