// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/learner_role.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "base/status.h"
#include "replay/client/remote_replay.h"
#include "weights/client/remote_weights.h"
#include "worker/nn/gemm.h"
#include "worker/rl/roles/dqn_role_learner.h"
#include "worker/rl/roles/role_learner.h"
#include "worker/rl/run/model_file.h"

namespace tandem::rl {
namespace {

// A learner that waits for a server which is away sees so late that it is asked to stop.
constexpr absl::Duration kLearnerCallTimeout = absl::Seconds(5);
constexpr absl::Duration kLearnerJoinTimeout = absl::Seconds(60);
// Also bounds how long the learners wait for one that gets no unrolls.
constexpr absl::Duration kGroupTimeout = absl::Minutes(11);

absl::StatusOr<RlReport> Train(const RlSpec& spec, const RlRunOptions& options, RoleJob* job) {
  const cluster::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const int servers, job->Servers(kReplayRole, kLearnerJoinTimeout));
  // A queue is not divided, so each learner takes from one. A table for random samples is.
  const bool sharded = spec.learner.algorithm.kind == "dqn";
  if (!sharded && servers > env.world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the job has ", servers, " replay servers and ", env.world_size,
        " learners; each learner takes from one server, so there must be at least as many learners"));
  }
  std::vector<std::unique_ptr<replay::RemoteReplay>> replays;
  std::vector<replay::Replay*> shards;
  const int begin = sharded ? 0 : env.rank % servers;
  for (int i = begin; i < (sharded ? servers : begin + 1); ++i) {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> channel,
                            job->Connect(kReplayRole, i, kLearnerJoinTimeout));
    replays.push_back(std::make_unique<replay::RemoteReplay>(
        std::move(channel),
        replay::RemoteReplayOptions{.name = env.member(), .call_timeout = kLearnerCallTimeout}));
    shards.push_back(replays.back().get());
  }
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> first,
                          job->Connect(kReplayRole, 0, kLearnerJoinTimeout));
  weights::RemoteWeights weights(first);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<collectives::ProcessGroup> group,
                          job->LearnerGroup(kGroupTimeout));
  const RoleLearnerOptions learning = {
      .learner = spec.learner, .servers = servers, .stop = options.stop, .waits = &job->waits()};
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Learner> learner,
                          sharded ? MakeDqnRoleLearner(learning, shards, &weights, group.get())
                                  : MakeRoleLearner(learning, shards[0], &weights, group.get()));
  bool resumed = false, ended = false;
  if (options.resume) {
    // Only the host of rank 0 need have the file.
    absl::StatusOr<std::string> bytes = env.rank == 0 ? ReadCheckpoint(spec) : std::string();
    TANDEM_RETURN_IF_ERROR(bytes);
    TANDEM_ASSIGN_OR_RETURN(*bytes, group->BroadcastBytes(*bytes));
    if (!bytes->empty()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string why_ended,
                              RestoreCheckpoint(spec, *bytes, spec.checkpoint_file, learner.get()));
      // A learner that a supervisor starts again may have died after its last checkpoint.
      ended = !why_ended.empty();
      if (ended && env.rank == 0) LogInfo(absl::StrCat("nothing to train: ", why_ended));
      resumed = true;
    }
  }
  if (env.rank == 0) return RunLearner(spec, options, learner.get(), resumed, ended);
  RlSpec other = spec;
  other.model_file.clear();
  other.checkpoint_file.clear();
  other.evaluation_episodes = 0;
  other.mean_return.reset();
  RlRunOptions silent = options;
  silent.silent = true;
  silent.tensorboard.clear();
  return RunLearner(other, silent, learner.get(), resumed, ended);
}

}  // namespace

absl::StatusOr<RlReport> RunLearnerRole(const RlSpec& spec, const RlRunOptions& options, RoleJob* job) {
  worker::UseOneBlasThread();
  cluster::Member& member = job->member();
  member.SetServing(true);
  RlRunOptions reported = options;
  reported.status = member.status().get();
  absl::StatusOr<RlReport> report = Train(spec, reported, job);
  member.SetServing(false);
  const absl::Status result = report.ok() ? report->failure : report.status();
  if (result.ok()) {
    member.AcknowledgeEnd();
  } else if (const absl::Status told = member.FailJob(result.message()); !told.ok()) {
    LogWarning(told.message());
  }
  return report;
}

}  // namespace tandem::rl
