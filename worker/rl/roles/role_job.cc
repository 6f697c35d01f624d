// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/role_job.h"

#include <cstdint>
#include <cstdlib>
#include <random>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/server.h"

namespace tandem::rl {
namespace {

constexpr char kHowToStart[] = "tandem run --learners 1 --replay 1 --actors 4 -- tandem rl JOB.yaml";

}  // namespace

absl::StatusOr<std::unique_ptr<RoleJob>> RoleJob::Open(absl::Duration timeout, cluster::Process* process) {
  std::unique_ptr<RoleJob> job(new RoleJob);
  TANDEM_ASSIGN_OR_RETURN(const cluster::Environment env, cluster::Environment::FromEnv());
  const bool learner = env.role == kLearnerRole;
  if (!learner && env.role != kActorRole && env.role != kReplayRole && env.role != kInferenceRole) {
    return absl::InvalidArgumentError(
        absl::StrCat("tandem rl has the roles learner, actor, replay and inference, and this process is '",
                     env.role, "' (TANDEM_ROLE); start the job with: ", kHowToStart));
  }
  if (learner != env.worker) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the learners must be the main role of the job, the one with a RANK; start it with: ", kHowToStart));
  }
  uint32_t restarts = 0;
  if (const char* text = std::getenv("TANDEM_PROCESS_RESTARTS"); text != nullptr) {
    if (!absl::SimpleAtoi(text, &restarts)) {
      return absl::InvalidArgumentError(
          absl::StrCat("TANDEM_PROCESS_RESTARTS is '", text, "'; it must be a number"));
    }
  }
  if (env.epoch == 0) {
    std::random_device random;
    job->life_ = Mix64(random(), random());
  } else if (env.epoch > 1 || restarts > 0) {
    job->life_ = Mix64(static_cast<uint64_t>(env.epoch), restarts);
  }
  TANDEM_ASSIGN_OR_RETURN(
      job->member_,
      cluster::Member::Join(env, {.join_timeout = timeout,
                                  .outlives_job = !learner,
                                  .exit_after = learner ? absl::ZeroDuration() : absl::InfiniteDuration(),
                                  .process = process}));
  return job;
}

absl::StatusOr<int> RoleJob::Servers(absl::string_view role, absl::Duration timeout) {
  const WaitLog::Wait wait = waits().Begin(absl::StrCat("a process of role '", role, "'"));
  absl::StatusOr<int> count = cluster::CountRoleServers(&store(), role, timeout);
  if (absl::IsDeadlineExceeded(count.status())) {
    return absl::DeadlineExceededError(absl::StrCat(
        "no process of role '", role, "' has come within ", absl::FormatDuration(timeout),
        role == kInferenceRole ? "; start one with --role inference=1 beside: " : "; start the job with: ",
        kHowToStart));
  }
  return count;
}

absl::StatusOr<std::shared_ptr<rpc::Channel>> RoleJob::Connect(absl::string_view role, int index,
                                                               absl::Duration timeout) {
  const WaitLog::Wait wait = waits().Begin(absl::StrCat(role, "/", index, ", which has not registered"));
  return cluster::ConnectToRole(*member_, role, index, timeout);
}

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> RoleJob::LearnerGroup(absl::Duration timeout) {
  const WaitLog::Wait wait =
      waits().Begin(absl::StrCat("all ", environment().world_size, " learners to join their group"));
  return collectives::InitProcessGroup(
      &store(), {.rank = environment().rank, .world_size = environment().world_size, .timeout = timeout});
}

void RoleJob::Close() {
  // The learner that hosts the store waits for the other learners. It does not wait for other roles, and may
  // have left before them.
  const absl::Duration timeout = is(kLearnerRole) ? absl::Seconds(10) : absl::Seconds(1);
  const absl::Status left = member_->Leave(timeout, "the learners have finished");
  if (!left.ok()) LogDebug(left.message());
}

}  // namespace tandem::rl
