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
#include "collectives/environment.h"
#include "collectives/process_group.h"
#include "rpc/channel.h"

namespace tandem::rl {

inline constexpr char kLearnerRole[] = "learner", kActorRole[] = "actor", kReplayRole[] = "replay";

// Not thread-safe.
class RoleJob {
 public:
  // Reads the launcher's variables and connects to the job's store. Blocks at most `timeout`. Errors: those
  // of Environment::FromEnv and OpenStore; InvalidArgument for a role that `tandem rl` does not have, and if
  // the learners are not the main role.
  static absl::StatusOr<std::unique_ptr<RoleJob>> Open(absl::Duration timeout);

  const collectives::Environment& environment() const { return env_; }
  bool is(absl::string_view role) const { return env_.role == role; }
  // Says how often this process has been started again by itself, in this round of the job.
  int restarts() const { return restarts_; }
  collectives::Store& store() { return *store_->store(); }
  const std::shared_ptr<rpc::Channel>& store_channel() const { return store_->channel(); }

  // Publishes the address of replay server `role_rank`, and how many there are.
  absl::Status RegisterReplay(const std::string& address);
  // Returns the address at which the replay server of this process was registered by an earlier life, or "".
  absl::StatusOr<std::string> EarlierReplayAddress();
  // Returns how many replay servers the job has. Blocks until one has registered, at most `timeout`.
  // DeadlineExceeded says how to start one.
  absl::StatusOr<int> ReplayServers(absl::Duration timeout);
  // Connects to replay server `index`. Blocks until it has registered, at most `timeout`.
  absl::StatusOr<std::shared_ptr<rpc::Channel>> ConnectReplay(int index, absl::Duration timeout);

  // Returns the group of the learners. Blocks until all have come, at most `timeout`, which also bounds each
  // operation.
  absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> LearnerGroup(absl::Duration timeout);
  // Announces that this process is done with the store.
  void Close();

 private:
  RoleJob() = default;

  collectives::Environment env_;
  int restarts_ = 0;
  std::unique_ptr<collectives::JobStore> store_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_ROLE_JOB_H_
