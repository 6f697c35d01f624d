// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/actor_role.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/remote_replay.h"
#include "weights/client/remote_weights.h"
#include "worker/rl/inference/remote_policy.h"
#include "worker/rl/learner/impala_update.h"

namespace tandem::rl {
namespace {

// How long a call waits before the actor looks whether to stop.
constexpr absl::Duration kSlice = absl::Milliseconds(500);
constexpr absl::Duration kWarnEvery = absl::Seconds(30);
constexpr absl::Duration kJoinTimeout = absl::Seconds(60);
constexpr absl::Duration kCallTimeout = absl::Seconds(5);

// A server may be away for a while, or full.
bool MayPass(const absl::Status& status) {
  return absl::IsDeadlineExceeded(status) || absl::IsUnavailable(status) || absl::IsCancelled(status) ||
         absl::IsAborted(status);
}

// Tells for how long something has been waited for, and says so now and then.
class Patience {
 public:
  explicit Patience(absl::Duration longest) : longest_(longest) { Reset(); }
  void Reset() { begin_ = next_warning_ = MonotonicNow(), next_warning_ += kWarnEvery; }
  // Returns an error once the longest time has passed.
  absl::Status Check(absl::string_view what, const absl::Status& reason) {
    const absl::Time now = MonotonicNow();
    if (now - begin_ > longest_) {
      return absl::DeadlineExceededError(absl::StrCat(what, " for ", absl::FormatDuration(longest_), ": ",
                                                      reason.message(), "; the actor gives up"));
    }
    if (now < next_warning_) return absl::OkStatus();
    next_warning_ = now + kWarnEvery;
    LogWarning(absl::StrCat(what, " for ", absl::FormatDuration(absl::Trunc(now - begin_, absl::Seconds(1))),
                            ": ", reason.message()));
    return absl::OkStatus();
  }

 private:
  const absl::Duration longest_;
  absl::Time begin_, next_warning_;
};

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
    return MayPass(asked) ? absl::OkStatus() : asked;
  };
  Patience patience(options.patience);
  while (!over()) {
    if (alone && actor->behind()) {
      const absl::StatusOr<bool> newer = actor->TakeWeights(MonotonicNow() + kSlice);
      if (!newer.ok() && !MayPass(newer.status())) return newer.status();
      if (actor->behind()) {
        const absl::Status none = absl::NotFoundError(
            actor->model() == nullptr ? "no learner has published any"
                                      : "those that the replay server knows have not been published");
        TANDEM_RETURN_IF_ERROR(patience.Check("no weights", newer.ok() ? none : newer.status()));
        // A server that has started again knows no tickets, and its new ones may require an earlier version.
        if (actor->model() != nullptr) {
          const absl::Status admitted = actor->Admit(absl::InfinitePast());
          if (!admitted.ok() && !MayPass(admitted)) return admitted;
        }
        continue;
      }
      if (over()) break;
    }
    const absl::Status admitted = actor->Admit(MonotonicNow() + kSlice);
    if (!admitted.ok()) {
      if (!MayPass(admitted)) return admitted;
      TANDEM_RETURN_IF_ERROR(patience.Check("no tickets for unrolls", admitted));
      TANDEM_RETURN_IF_ERROR(look_whether_over());
      continue;
    }
    if (alone) {
      // Weights of a learner that has started again may have a smaller number than those of its earlier life,
      // so that behind() does not tell. They were published before the table granted tickets for them.
      const absl::Status looked = actor->TakeWeights(absl::InfinitePast()).status();
      if (!looked.ok()) {
        if (!MayPass(looked)) return looked;
        TANDEM_RETURN_IF_ERROR(patience.Check("no weights", looked));
        continue;
      }
      if (over()) break;
      if (actor->behind()) continue;
    }
    const absl::Status acted = actor->Act(MonotonicNow() + kSlice);
    if (!acted.ok()) {
      if (!MayPass(acted)) return acted;
      TANDEM_RETURN_IF_ERROR(patience.Check("no actions", acted));
      continue;
    }
    patience.Reset();
    actor->TakeEpisodes();
    absl::Status delivered;
    while (!(delivered = actor->Deliver(MonotonicNow() + kSlice)).ok()) {
      if (!MayPass(delivered)) return delivered;
      if (stopped()) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(patience.Check("no place for unrolls", delivered));
      TANDEM_RETURN_IF_ERROR(look_whether_over());
      if (over()) return absl::OkStatus();
    }
    patience.Reset();
  }
  return absl::OkStatus();
}

absl::Status RunActorRole(const RlSpec& spec, RoleJob* job, const std::atomic<bool>& stop) {
  const collectives::Environment& env = job->environment();
  TANDEM_ASSIGN_OR_RETURN(const int servers, job->Servers(kReplayRole, kJoinTimeout));
  TANDEM_ASSIGN_OR_RETURN(const std::shared_ptr<rpc::Channel> queue,
                          job->Connect(kReplayRole, env.role_rank % servers, kJoinTimeout));
  replay::RemoteReplay replay(queue, {.name = env.member(), .call_timeout = kCallTimeout});
  ActorLoopOptions options = {.actor = ActorOptions(spec.learner, static_cast<size_t>(env.role_rank)),
                              .stop = &stop};
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
  // An actor that was started again must not repeat its episodes.
  if (job->life() > 0) {
    options.actor.environment_seed = Mix64(options.actor.environment_seed, job->life());
    options.actor.exploration = job->life();
  }
  TANDEM_RETURN_IF_ERROR(RunActorLoop(options, &replay, weights.get()));
  while (!stop) absl::SleepFor(absl::Milliseconds(20));  // a signal handler cannot wake it otherwise
  return absl::OkStatus();
}

}  // namespace tandem::rl
