// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/role_learner.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/learner/impala_update.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/roles/patience.h"
#include "worker/rl/roles/policy_publisher.h"

namespace tandem::rl {
namespace {

// Between two attempts to reach a replay server that is away.
constexpr absl::Duration kServerPause = absl::Milliseconds(100);

// The numbers that the ranks add up beside their gradients.
enum Extra { kUsedUnrolls, kTakenUnrolls, kStopRequests, kInterruptions, kExtras };

// A rank sends this in the place of a version if the learners are to stop before they begin.
constexpr char kStopText[] = "stop";

absl::Status StopError() { return absl::CancelledError("the learner was asked to stop"); }

class RoleLearner : public Learner {
 public:
  RoleLearner(const RoleLearnerOptions& options, replay::Replay* replay, weights::Weights* weights,
              collectives::ProcessGroup* group)
      : options_(options),
        replay_(replay),
        group_(group),
        publisher_(
            weights, [this] { return MustStop(); }, options.waits) {}

  absl::Status Init() {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                            MakeEnvironment(options_.learner.environment));
    TANDEM_ASSIGN_OR_RETURN(update_, ImpalaUpdate::Create(options_.learner, environment->spec()));
    table_ = UnrollTableOptions(options_.learner, environment->spec(), OwnLearners());
    sums_.resize(update_->policy().parameters().gradients().size() + kExtras);
    return absl::OkStatus();
  }

  // Publishes and commits the first weights, once. All ranks must call it. Returns false if one of them has
  // been asked to stop while it waited for a server: nothing has begun then.
  absl::StatusOr<bool> Begin() {
    if (begun_) return !stopped_before_;
    if (IsPaced(options_.learner)) {
      TANDEM_ASSIGN_OR_RETURN(const bool taken, TakeHeads());
      if (!taken) return StoppedBefore();
    }
    std::string begun;
    if (group_->rank() == 0) {
      const absl::Status published = publisher_.Begin(version_, update_->policy(), Info(/*last=*/false));
      if (replay::MayRepeat(published) && MustStop()) {
        begun = kStopText;
      } else {
        TANDEM_RETURN_IF_ERROR(published);
        begun = absl::StrCat(publisher_.version().epoch, " ", publisher_.version().number);
      }
    }
    std::string first;
    {
      const WaitLog::Wait wait = WaitLog::Begin(options_.waits, kForTheBegin);
      TANDEM_ASSIGN_OR_RETURN(first, group_->BroadcastBytes(begun));
    }
    if (first == kStopText) return StoppedBefore();
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(first, ' ');
    if (!absl::SimpleAtoi(parts.first, &epoch_) || !absl::SimpleAtoi(parts.second, &version_))
      return absl::InternalError(absl::StrCat("learner/0 began with the version '", first, "'"));
    begun_ = true;
    TANDEM_RETURN_IF_ERROR(Commit());
    return true;
  }

  absl::Status Advance() override {
    TANDEM_ASSIGN_OR_RETURN(const bool begun, Begin());
    if (!begun) {
      stopped_ = interrupted_ = true;
      return absl::OkStatus();
    }
    absl::StatusOr<replay::Batch> batch = NextBatch();
    const absl::Span<float> gradients = update_->policy().parameters().gradients();
    float* const extras = sums_.data() + gradients.size();
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    if (batch.ok()) {
      TANDEM_RETURN_IF_ERROR(update_->ComputeGradients(*batch, version_));
      const float share = 1.0f / static_cast<float>(group_->world_size());
      for (size_t i = 0; i < gradients.size(); ++i) sums_[i] = share * gradients[i];
      extras[kUsedUnrolls] = update_->has_gradients() ? 1 : 0;
      extras[kTakenUnrolls] = static_cast<float>(batch->size());
      AddEpisodes(EpisodesOf(*batch));
    } else if (!absl::IsCancelled(batch.status()) || !stop_requested_) {
      return batch.status();
    }
    extras[kStopRequests] = stop_requested_ ? 1 : 0;
    extras[kInterruptions] = interrupt_requested_ ? 1 : 0;
    if (group_->world_size() > 1) {
      const WaitLog::Wait wait = WaitLog::Begin(options_.waits, kForGradients);
      TANDEM_RETURN_IF_ERROR(
          Annotate(group_->AllReduce(absl::MakeSpan(sums_)).Wait(), "averaging the learners' gradients"));
    }
    consumed_ += static_cast<uint64_t>(extras[kTakenUnrolls]);
    env_steps_ = consumed_ * static_cast<uint64_t>(options_.learner.algorithm.unroll);
    stopped_ = extras[kStopRequests] > 0;
    interrupted_ = extras[kInterruptions] > 0;
    if (extras[kUsedUnrolls] > 0) {
      std::copy_n(sums_.begin(), gradients.size(), gradients.begin());
      TANDEM_RETURN_IF_ERROR(update_->Apply(env_steps_));
      updates_ = update_->updates();
    } else if (extras[kTakenUnrolls] == 0 || !IsPaced(options_.learner)) {
      // A paced table admits further unrolls when a version is committed, so each batch ends with one.
      return absl::OkStatus();
    }
    if (stopped_) return absl::OkStatus();  // Finish publishes
    ++version_;
    const absl::Status published = Publish(/*last=*/false);
    // A learner that is asked to stop need not wait for a store that is away: Finish publishes once more.
    if (!published.ok() && !(replay::MayRepeat(published) && MustStop())) return published;
    return stop_requested_ ? absl::OkStatus() : Commit();
  }

  absl::Status Finish() override {
    // The other ranks leave when rank 0 has said that there will be no more.
    TANDEM_ASSIGN_OR_RETURN(const bool begun, Begin());
    if (!begun) return absl::OkStatus();
    const absl::Status told = Publish(/*last=*/true);
    const WaitLog::Wait wait = WaitLog::Begin(options_.waits, kForTheEnd);
    const absl::Status left = group_->Barrier().Wait();
    return told.ok() ? Annotate(left, "the end of the learners") : told;
  }

  void RequestStop(bool interrupted) override {
    stop_requested_ = true;
    interrupt_requested_ = interrupted;
  }
  LearnerState state() const override {
    return {.env_steps = env_steps_,
            .updates = updates_,
            .version = version_,
            .optimizer = update_->optimizer().state()};
  }
  absl::Status Restore(const LearnerState& state) override {
    TANDEM_RETURN_IF_ERROR(update_->Restore(state));
    env_steps_ = state.env_steps;
    updates_ = state.updates;
    version_ = state.version;
    consumed_ = state.env_steps / static_cast<uint64_t>(options_.learner.algorithm.unroll);
    return absl::OkStatus();
  }
  Policy& policy() override { return update_->policy(); }
  Figures figures() const override { return update_->figures(); }
  std::optional<LagFigures> lag() const override { return update_->lag(); }

 private:
  bool StoppedBefore() {
    begun_ = stopped_before_ = true;
    return false;
  }

  weights::PublishInfo Info(bool last) const {
    return {.step = updates_, .items_consumed = consumed_, .last = last};
  }
  absl::Status Publish(bool last) { return publisher_.Publish(update_->policy(), Info(last)); }

  // Returns true if the learner is to stop. Looks whether the process has been asked to.
  bool MustStop() {
    if (options_.stop != nullptr && options_.stop->load()) RequestStop(/*interrupted=*/true);
    return stop_requested_;
  }

  // Returns how many learners take unrolls from this one's replay server.
  int OwnLearners() const {
    return LearnersOf(group_->rank() % options_.servers, options_.servers, group_->world_size());
  }

  // Raises the version above those that the tables know: they may have outlived the store of the weights.
  // Returns false if a rank has been asked to stop meanwhile.
  absl::StatusOr<bool> TakeHeads() {
    uint64_t head = 0;
    absl::StatusOr<replay::TableInfo> found;
    if (group_->rank() < options_.servers) {
      const absl::Status asked = AwaitServer([&] { return (found = replay_->Info(kUnrollTable)).status(); });
      if (!(absl::IsCancelled(asked) && stop_requested_)) TANDEM_RETURN_IF_ERROR(asked);
    }
    const bool stops = group_->rank() < options_.servers && !found.ok();
    if (found.ok()) {
      const replay::TableInfo& info = *found;
      if (info.options.staleness != table_.staleness) {
        return absl::FailedPreconditionError(absl::StrCat(
            "table '", kUnrollTable, "' of replay/", group_->rank(), " is not the one of this job with ",
            group_->world_size(), " learners; replay servers and learners must run the same job"));
      }
      if (info.staleness.head)
        head = static_cast<uint64_t>(std::max<int64_t>(0, info.staleness.head->version));
    }
    const WaitLog::Wait wait = WaitLog::Begin(options_.waits, kForTheBegin);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> heads,
                            group_->AllGatherBytes(stops ? kStopText : absl::StrCat(head)));
    for (const std::string& text : heads) {
      if (text == kStopText) return false;
      if (!absl::SimpleAtoi(text, &head))
        return absl::InternalError(absl::StrCat("a learner sent '", text, "' as its table's version"));
      version_ = std::max(version_, head);
    }
    return true;
  }

  // Commits the version to the paced table of this learner's server. Other ranks may do so a moment before
  // rank 0 has published it; actors then wait for it. All learners of a server commit each version, of which
  // the first one counts: their samples carry it from then on, so that a server which comes back without it
  // learns it from whichever of them still waits for a batch.
  absl::Status Commit() {
    if (!IsPaced(options_.learner)) return absl::OkStatus();
    const replay::CommittedVersion version = {
        .epoch = epoch_,
        .version = static_cast<int64_t>(version_),
        .items_consumed =
            consumed_ * static_cast<uint64_t>(OwnLearners()) / static_cast<uint64_t>(group_->world_size())};
    const absl::Status committed = AwaitServer([&] { return replay_->Commit(kUnrollTable, version); });
    // No further unrolls are needed then.
    return absl::IsCancelled(committed) && stop_requested_ ? absl::OkStatus() : committed;
  }

  // Repeats a call while the replay server is away, at most as long as the learner waits for a batch.
  // Cancelled if a stop is requested meanwhile.
  absl::Status AwaitServer(absl::FunctionRef<absl::Status()> call) {
    Patience patience(options_.patience, "is it alive?");
    for (;;) {
      const absl::Status status = call();
      if (!replay::MayRepeat(status)) return status;
      if (MustStop()) return StopError();
      TANDEM_RETURN_IF_ERROR(
          patience.Check(absl::StrCat("replay/", group_->rank() % options_.servers), status));
      absl::SleepFor(kServerPause);
    }
  }

  // Waits for a batch. Cancelled if a stop is requested meanwhile.
  absl::StatusOr<replay::Batch> NextBatch() {
    Patience patience(options_.patience, "are the actors alive?");
    for (;;) {
      if (MustStop()) return StopError();
      absl::StatusOr<replay::Batch> batch =
          replay_->Sample(kUnrollTable, {.batch = static_cast<uint32_t>(options_.learner.algorithm.batch)},
                          MonotonicNow() + kLearnerSlice, "learner");
      if (batch.ok() || !replay::MayRepeat(batch.status())) return batch;
      TANDEM_RETURN_IF_ERROR(publisher_.status());
      TANDEM_RETURN_IF_ERROR(patience.Check("unrolls", batch.status()));
    }
  }

  // The episodes that have ended in the unrolls of a batch.
  static std::vector<Episode> EpisodesOf(const replay::Batch& batch) {
    const auto terminated = batch.Find("terminated")->values<uint8_t>(),
               truncated = batch.Find("truncated")->values<uint8_t>();
    const auto returns = batch.Find("episode_return")->values<float>(),
               lengths = batch.Find("episode_length")->values<float>();
    std::vector<Episode> episodes;
    for (size_t i = 0; i < terminated.size(); ++i) {
      if (terminated[i] == 0 && truncated[i] == 0) continue;
      episodes.push_back(
          {.episode_return = static_cast<double>(returns[i]), .length = static_cast<int64_t>(lengths[i])});
    }
    return episodes;
  }

  const RoleLearnerOptions options_;
  replay::Replay* const replay_;
  collectives::ProcessGroup* const group_;
  std::unique_ptr<ImpalaUpdate> update_;
  PolicyPublisher publisher_;  // begun by rank 0
  replay::TableOptions table_;
  uint64_t epoch_ = 0, version_ = 0;  // of the newest weights
  uint64_t consumed_ = 0;             // unrolls, of all ranks
  std::vector<float> sums_;           // gradients, then the extras
  bool begun_ = false, stop_requested_ = false, interrupt_requested_ = false;
  bool stopped_before_ = false;  // it has not begun: a rank was asked to stop before
};

}  // namespace

absl::StatusOr<std::unique_ptr<Learner>> MakeRoleLearner(const RoleLearnerOptions& options,
                                                         replay::Replay* replay, weights::Weights* weights,
                                                         collectives::ProcessGroup* group) {
  TANDEM_ASSIGN_OR_RETURN(const AlgorithmKind* const kind, Algorithms().Get(options.learner.algorithm.kind));
  TANDEM_RETURN_IF_ERROR(Algorithms().Validate(*kind, options.learner.algorithm));
  if (!kind->build.has_actors) {
    return absl::InvalidArgumentError(
        absl::StrCat("algorithm '", kind->name,
                     "' acts in its own process and has no roles; run `tandem rl "
                     "JOB` without `tandem run`, or use impala"));
  }
  if (options.learner.policy.normalize_observations && group->world_size() > 1) {
    return absl::InvalidArgumentError(
        "policy.normalize_observations needs a single learner: each one would count other observations");
  }
  auto learner = std::make_unique<RoleLearner>(options, replay, weights, group);
  TANDEM_RETURN_IF_ERROR(learner->Init());
  return learner;
}

}  // namespace tandem::rl
