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
#include "cluster/role_server.h"

namespace tandem::rl {
namespace {

constexpr char kHowToStart[] = "tandem run --learners 1 --replay 1 --actors 4 -- tandem rl JOB.yaml";

}  // namespace

absl::StatusOr<std::unique_ptr<RoleJob>> RoleJob::Open(absl::Duration timeout) {
  std::unique_ptr<RoleJob> job(new RoleJob);
  TANDEM_ASSIGN_OR_RETURN(job->env_, cluster::Environment::FromEnv());
  const cluster::Environment& env = job->env_;
  if (!job->is(kLearnerRole) && !job->is(kActorRole) && !job->is(kReplayRole) && !job->is(kInferenceRole)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tandem rl has the roles learner, actor, replay and inference, and this process is '",
                     env.role, "' (TANDEM_ROLE); start the job with: ", kHowToStart));
  }
  if (job->is(kLearnerRole) != env.worker) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the learners must be the main role of the job, the one with a RANK; start it with: ", kHowToStart));
  }
  SetLogName(env.member());
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
  const WaitLog::Wait wait = job->waits_.Begin("the job's store, which learner/0 or the launcher hosts");
  TANDEM_ASSIGN_OR_RETURN(job->store_, cluster::OpenStore(env, timeout));
  job->env_ = job->store_->env();
  return job;
}

absl::StatusOr<int> RoleJob::Servers(absl::string_view role, absl::Duration timeout) {
  const WaitLog::Wait wait = waits_.Begin(absl::StrCat("a process of role '", role, "'"));
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
  const WaitLog::Wait wait = waits_.Begin(absl::StrCat(role, "/", index, ", which has not registered"));
  return cluster::ConnectToRole(env_, &store(), role, index, timeout);
}

absl::StatusOr<std::unique_ptr<collectives::ProcessGroup>> RoleJob::LearnerGroup(absl::Duration timeout) {
  const WaitLog::Wait wait =
      waits_.Begin(absl::StrCat("all ", env_.world_size, " learners to join their group"));
  return collectives::InitProcessGroup(
      &store(), {.rank = env_.rank, .world_size = env_.world_size, .timeout = timeout});
}

void RoleJob::Close() {
  // The learner that hosts the store waits for the other learners. It does not wait for other roles, and may
  // have left before them.
  const absl::Duration timeout = is(kLearnerRole) ? absl::Seconds(10) : absl::Seconds(1);
  if (const absl::Status closed = store_->Close(timeout); !closed.ok()) LogDebug(closed.message());
}

}  // namespace tandem::rl
