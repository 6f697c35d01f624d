// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/actor_role.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "replay/client/remote_replay.h"
#include "weights/client/remote_weights.h"
#include "worker/rl/inference/remote_policy.h"
#include "worker/rl/learner/impala_update.h"
#include "worker/rl/roles/patience.h"

namespace tandem::rl {
namespace {

// How long a call waits before the actor looks whether to stop.
constexpr absl::Duration kSlice = absl::Milliseconds(500);
constexpr absl::Duration kJoinTimeout = absl::Seconds(60);
constexpr absl::Duration kCallTimeout = absl::Seconds(5);

// Refuses more replay servers than actors: nobody would write to the last ones, and learners would wait for
// them. Ends the job, since the launcher would start the actor again and again.
absl::Status CheckServers(int servers, bool transitions, RoleJob* job) {
  const cluster::Environment& env = job->environment();
  if (servers <= env.role_world_size) return absl::OkStatus();
  // The learners refuse more queues than learners.
  if (!transitions && servers > env.world_size) return absl::OkStatus();
  const absl::Status wrong = absl::InvalidArgumentError(absl::StrCat(
      "the job has ", servers, " replay servers and ", env.role_world_size,
      " actors; actor i writes to server i modulo their number, so there must be at least as many actors"));
  // It is reported in the name of all: a single actor that fails does not end a job which starts it again.
  const absl::Status told = job->member().FailJob(wrong.message(), absl::Seconds(5), /*as=*/"actors");
  if (!told.ok()) LogWarning(told.message());
  return wrong;
}

// Waits until a learner publishes weights after the last ones of another, or for `stop`. Without weights it
// waits for `stop` alone.
void AwaitLearner(weights::Weights* weights, const std::atomic<bool>& stop) {
  std::optional<weights::ModelVersion> last;
  absl::Time next = MonotonicNow();
  for (; !stop; absl::SleepFor(absl::Milliseconds(20))) {  // a signal handler cannot wake it otherwise
    if (weights == nullptr || MonotonicNow() < next) continue;
    next = MonotonicNow() + kSlice;
    if (last.has_value()) {
      const absl::StatusOr<weights::ModelVersion> head = weights->Head(kPolicyModel, next);
      if (head.ok() && *head != weights::ModelVersion() && *head != *last) return;
    } else {
      const auto newest = weights->Newer(kPolicyModel, {}, absl::InfinitePast());
      if (!newest.ok() || *newest == nullptr) continue;
      if (!(*newest)->info.last) return;
      last = (*newest)->info.version;
    }
  }
}

}  // namespace

absl::Status RunActorLoop(const ActorLoopOptions& options, replay::Replay* replay,
                          weights::Weights* weights) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<UnrollActor> actor,
                          UnrollActor::Create(options.actor, replay, weights, options.source));
  const auto stopped = [&] { return options.stop != nullptr && options.stop->load(); };
  const auto over = [&] { return stopped() || actor->last(); };
  const bool alone = options.source == nullptr;
  // A learner that has ended takes no more unrolls.
  const auto look_whether_over = [&] {
    const absl::Status asked = alone ? actor->TakeWeights(absl::InfinitePast()).status()
                                     : actor->AskWhetherLast(MonotonicNow() + kSlice);
    return replay::MayRepeat(asked) ? absl::OkStatus() : asked;
  };
  Patience patience(options.patience, "the actor gives up");
  while (!over()) {
    if (alone && actor->behind()) {
      const absl::StatusOr<bool> newer = actor->TakeWeights(MonotonicNow() + kSlice);
      if (!newer.ok() && !replay::MayRepeat(newer.status())) return newer.status();
      if (actor->behind()) {
        const absl::Status none = absl::NotFoundError(
            actor->model() == nullptr ? "no learner has published any"
                                      : "those that the replay server knows have not been published");
        TANDEM_RETURN_IF_ERROR(patience.Check("weights", newer.ok() ? none : newer.status()));
        // A server that has started again knows no tickets, and its new ones may require an earlier version.
        if (actor->model() != nullptr) {
          const absl::Status admitted = actor->Admit(absl::InfinitePast());
          if (!admitted.ok() && !replay::MayRepeat(admitted)) return admitted;
        }
        continue;
      }
      if (over()) break;
    }
    const absl::Status admitted = actor->Admit(MonotonicNow() + kSlice);
    if (!admitted.ok()) {
      if (!replay::MayRepeat(admitted)) return admitted;
      TANDEM_RETURN_IF_ERROR(patience.Check("tickets for unrolls", admitted));
      TANDEM_RETURN_IF_ERROR(look_whether_over());
      continue;
    }
    if (alone) {
      // The newest weights lag least. behind() does not tell whether there are newer ones: a learner that has
      // started again may publish smaller numbers than in its earlier life, and a server of an earlier
      // release says no epoch. What is published now was published before the table granted these tickets.
      const absl::Status looked = actor->TakeWeights(absl::InfinitePast()).status();
      if (!looked.ok()) {
        if (!replay::MayRepeat(looked)) return looked;
        TANDEM_RETURN_IF_ERROR(patience.Check("weights", looked));
        continue;
      }
      if (over()) break;
      if (actor->behind()) continue;
    }
    const absl::Status acted = actor->Act(MonotonicNow() + kSlice);
    if (!acted.ok()) {
      if (!replay::MayRepeat(acted)) return acted;
      TANDEM_RETURN_IF_ERROR(patience.Check("actions", acted));
      continue;
    }
    patience.Reset();
    if (options.status != nullptr) options.status->SetStep(actor->env_steps());
    actor->TakeEpisodes();
    absl::Status delivered;
    while (!(delivered = actor->Deliver(MonotonicNow() + kSlice)).ok()) {
      if (!replay::MayRepeat(delivered)) return delivered;
      if (stopped()) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(patience.Check("a place for unrolls", delivered));
      TANDEM_RETURN_IF_ERROR(look_whether_over());
      if (over()) return absl::OkStatus();
    }
    patience.Reset();
  }
  return absl::OkStatus();
}

absl::Status RunTransitionActorLoop(const TransitionActorLoopOptions& options, replay::Replay* replay,
                                    weights::Weights* weights) {
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<TransitionActor> actor,
                          TransitionActor::Create(options.actor, replay, weights));
  const auto over = [&] { return (options.stop != nullptr && options.stop->load()) || actor->last(); };
  Patience patience(options.patience, "the actor gives up");
  while (!over()) {
    // An actor that has weights goes on while their store is away for a moment.
    const bool waits = actor->must_wait();
    const absl::StatusOr<bool> newer =
        actor->TakeWeights(waits ? MonotonicNow() + kSlice : absl::InfinitePast());
    if (!newer.ok() && !replay::MayRepeat(newer.status())) return newer.status();
    if (actor->must_wait()) {
      if (newer.ok() && *newer) patience.Reset();
      TANDEM_RETURN_IF_ERROR(patience.Check(
          "weights",
          newer.ok() ? absl::NotFoundError(actor->model() == nullptr ? "no learner has published any"
                                                                     : "the learner is far behind the actors")
                     : newer.status()));
      continue;
    }
    if (over()) break;
    TANDEM_RETURN_IF_ERROR(actor->Act());
    if (options.status != nullptr) options.status->SetStep(actor->env_steps());
    patience.Reset();
    absl::Status delivered;
    while (!(delivered = actor->Deliver(MonotonicNow() + kSlice)).ok() && !over()) {
      if (!replay::MayRepeat(delivered)) return delivered;
      TANDEM_RETURN_IF_ERROR(patience.Check("a place for transitions", delivered));
      const absl::Status looked = actor->TakeWeights(absl::InfinitePast()).status();
      if (!looked.ok() && !replay::MayRepeat(looked)) return looked;
    }
    patience.Reset();
  }
  return absl::OkStatus();
}

absl::Status RunActorRole(const RlSpec& spec, RoleJob* job, const std::atomic<bool>& stop) {
  const cluster::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const int servers, job->Servers(kReplayRole, kJoinTimeout));
  const bool transitions = spec.learner.algorithm.kind == "dqn";
  TANDEM_RETURN_IF_ERROR(CheckServers(servers, transitions, job));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> queue,
                          job->Connect(kReplayRole, env.role_rank % servers, kJoinTimeout));
  replay::RemoteReplay replay(queue, {.name = env.member(), .call_timeout = kCallTimeout});
  ActorLoopOptions options = {.actor = ActorOptions(spec.learner, static_cast<size_t>(env.role_rank)),
                              .stop = &stop,
                              .status = job->member().status().get()};
  std::unique_ptr<weights::RemoteWeights> weights;
  std::unique_ptr<RemotePolicy> policy;
  if (spec.remote_inference) {
    TANDEM_ASSIGN_OR_RETURN(const int policies, job->Servers(kInferenceRole, kJoinTimeout));
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> server,
                            job->Connect(kInferenceRole, env.role_rank % policies, kJoinTimeout));
    policy = std::make_unique<RemotePolicy>(std::move(server));
    options.source = policy.get();
  } else {
    TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<rpc::Channel> first, job->Connect(kReplayRole, 0, kJoinTimeout));
    weights = std::make_unique<weights::RemoteWeights>(std::move(first));
  }
  job->member().status()->SetState("acting");
  job->member().SetServing(true);
  // A learner that has ended may be followed by one that goes on. An actor must not repeat its episodes then,
  // nor after it was started again.
  for (uint64_t round = 0; !stop; ++round) {
    const uint64_t life = round == 0 ? job->life() : Mix64(job->life(), round);
    if (transitions) {
      TANDEM_RETURN_IF_ERROR(
          RunTransitionActorLoop({.actor = {.learner = spec.learner,
                                            .index = static_cast<size_t>(env.role_rank),
                                            .actors = static_cast<size_t>(env.role_world_size),
                                            .life = life},
                                  .stop = &stop,
                                  .status = options.status},
                                 &replay, weights.get()));
    } else {
      ActorLoopOptions own = options;
      if (life > 0) {
        own.actor.environment_seed = Mix64(own.actor.environment_seed, life);
        own.actor.exploration = life;
      }
      TANDEM_RETURN_IF_ERROR(RunActorLoop(own, &replay, weights.get()));
    }
    AwaitLearner(weights.get(), stop);
  }
  return absl::OkStatus();
}

}  // namespace tandem::rl
