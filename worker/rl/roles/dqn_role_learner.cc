// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/roles/dqn_role_learner.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/may_repeat.h"
#include "replay/client/sharded_sampler.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/learner/dqn_update.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/roles/patience.h"
#include "worker/rl/roles/policy_publisher.h"
#include "worker/rl/roles/transition_actor.h"

namespace tandem::rl {
namespace {

// How often the learner looks whether actors have done further steps.
constexpr absl::Duration kCountPause = absl::Milliseconds(5);
// How long a rank waits for a batch before it lets the others go on.
constexpr absl::Duration kBatchTime = absl::Seconds(2);
// After so long without steps a version is published: actors that wait may have done steps which were lost
// before they were counted.
constexpr absl::Duration kIdlePublish = absl::Seconds(2);
constexpr uint64_t kMostUpdates = 32;  // of one Advance; a version is published after it
constexpr uint32_t kEpisodesAtOnce = 256;

// A rank sends this if it is asked to stop before it has begun.
constexpr char kDqnStopText[] = "stop";

// The numbers that the ranks add up beside their gradients.
enum DqnExtra { kDrawnBatches, kDqnStopRequests, kDqnInterruptions, kDqnExtras };

class DqnRoleLearner : public Learner {
 public:
  DqnRoleLearner(const RoleLearnerOptions& options, std::vector<replay::Replay*> shards,
                 weights::Weights* weights, collectives::ProcessGroup* group)
      : options_(options),
        group_(group),
        publisher_(
            weights, [this] { return MustStop(); }, options.waits),
        idle_(options.patience, "are the actors alive?"),
        batchless_(options.patience, "are the actors alive?") {
    for (replay::Replay* const shard : shards) shards_.push_back({.replay = shard});
  }

  absl::Status Init() {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                            MakeEnvironment(options_.learner.environment));
    TANDEM_ASSIGN_OR_RETURN(update_, DqnUpdate::Create(options_.learner, environment->spec()));
    sums_.resize(update_->policy().parameters().gradients().size() + kDqnExtras);
    learned_ = learning_starts();
    return absl::OkStatus();
  }

  absl::Status Advance() override {
    TANDEM_ASSIGN_OR_RETURN(const bool begun, Begin());
    if (!begun) {
      stopped_ = interrupted_ = true;
      return absl::OkStatus();
    }
    TANDEM_RETURN_IF_ERROR(ShareSeenSteps());
    const uint64_t due = std::min(kMostUpdates, (seen_ - learned_) / update_every());
    if (due == 0) return Exchange(/*has_batch=*/false);
    for (uint64_t i = 0; i < due && !stopped_; ++i) {
      const absl::StatusOr<replay::ShardedBatch> sample = NextBatch();
      if (sample.ok()) {
        TANDEM_RETURN_IF_ERROR(update_->ComputeGradients(sample->batch, learned_));
      } else if (!replay::MayRepeat(sample.status())) {
        return sample.status();
      }
      TANDEM_RETURN_IF_ERROR(Exchange(sample.ok()));
      if (sample.ok() && options_.learner.algorithm.priority_exponent > 0) {
        const absl::Status changed = sampler_->UpdatePriorities(*sample, update_->priorities()).status();
        // A server that is away loses them together with its table.
        if (!changed.ok() && !replay::MayRepeat(changed)) return changed;
      }
      if (!drawn_ && !stopped_) {
        // The steps are counted again, since a table may have been lost.
        TANDEM_RETURN_IF_ERROR(batchless_.Check("a batch of transitions", sample.status()));
        break;
      }
      batchless_.Reset();
    }
    if (stopped_) return absl::OkStatus();  // Finish publishes
    const absl::Status published = Publish(/*last=*/false);
    // A learner that is asked to stop need not wait for a store that is away: Finish publishes once more.
    return replay::MayRepeat(published) && MustStop() ? absl::OkStatus() : published;
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
    LearnerState state = update_->state();
    state.env_steps = env_steps_;
    state.version = restored_version_;
    if (publisher_.begun()) state.version = std::max(state.version, publisher_.version().number);
    return state;
  }
  absl::Status Restore(const LearnerState& state) override {
    TANDEM_RETURN_IF_ERROR(update_->Restore(state));
    updates_ = state.updates;
    restored_version_ = state.version;
    env_steps_ = target_steps_ = state.env_steps;
    learned_ = std::max(state.env_steps, learning_starts());
    return absl::OkStatus();
  }
  Policy& policy() override { return update_->policy(); }
  Figures figures() const override {
    Figures figures = update_->figures(env_steps_);
    uint64_t items = 0;
    for (const Shard& shard : shards_) items += shard.items;
    figures.emplace_back("replay/transitions", static_cast<double>(items));
    figures.emplace_back("replay/lost_transitions", static_cast<double>(lost_));
    figures.emplace_back("replay/steps_ahead", static_cast<double>(seen_) - static_cast<double>(learned_));
    return figures;
  }

 private:
  // A replay server as it was seen last.
  struct Shard {
    replay::Replay* replay = nullptr;
    uint64_t incarnation = 0, inserts = 0, items = 0;
    bool silent = false;
  };

  uint64_t update_every() const { return static_cast<uint64_t>(options_.learner.algorithm.update_every); }
  uint64_t learning_starts() const {
    return static_cast<uint64_t>(options_.learner.algorithm.learning_starts);
  }

  bool MustStop() {
    if (options_.stop != nullptr && options_.stop->load()) RequestStop(/*interrupted=*/true);
    return stop_requested_;
  }

  // Publishes the first weights and looks at the tables, once. All ranks must call it. Returns false if
  // one of them has been asked to stop while it waited for a server: the learners then do not begin.
  absl::StatusOr<bool> Begin() {
    if (begun_) return !stopped_before_;
    const absl::Status own = BeginOwn();
    const bool stops = stop_requested_ && replay::MayRepeat(own);
    if (!own.ok() && !stops) return own;
    const WaitLog::Wait wait = WaitLog::Begin(options_.waits, kForTheBegin);
    TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                            group_->AllGatherBytes(stops ? kDqnStopText : ""));
    begun_ = true;
    stopped_before_ = std::find(all.begin(), all.end(), kDqnStopText) != all.end();
    return !stopped_before_;
  }
  absl::Status BeginOwn() {
    seen_ = learned_;
    const replay::TableOptions wanted =
        TransitionTableOptions(options_.learner, static_cast<int>(shards_.size()));
    for (size_t i = 0; i < shards_.size(); ++i) {
      absl::StatusOr<replay::TableInfo> info;
      TANDEM_RETURN_IF_ERROR(AwaitServers([&] {
        return (info = shards_[i].replay->Info(kTransitionTable, MonotonicNow() + kLearnerSlice)).status();
      }));
      if (info->options.max_items != wanted.max_items || info->options.sampler != wanted.sampler) {
        return absl::FailedPreconditionError(absl::StrCat(
            "table '", kTransitionTable, "' of replay/", i, " is not the one of this job with ",
            shards_.size(), " replay servers; replay servers and learners must run the same job"));
      }
      shards_[i].incarnation = info->server_incarnation;
      shards_[i].inserts = info->inserts;
      shards_[i].items = info->items;
    }
    // Tables that have outlived an earlier learner need not be filled first.
    FillIfNeeded();
    if (group_->rank() == 0) {
      published_ = MonotonicNow();
      TANDEM_RETURN_IF_ERROR(publisher_.Begin(restored_version_, update_->policy(), Info(/*last=*/false)));
    }
    return absl::OkStatus();
  }

  // Returns the next batch, by `deadline`. Makes the sampler if there is none: it draws ahead from then on,
  // so it must not be there while the tables fill.
  absl::StatusOr<replay::ShardedBatch> Draw(absl::Time deadline) {
    if (sampler_ == nullptr) {
      std::vector<replay::Replay*> shards;
      for (const Shard& shard : shards_) shards.push_back(shard.replay);
      TANDEM_ASSIGN_OR_RETURN(
          sampler_,
          replay::ShardedSampler::Create(
              shards, {.table = kTransitionTable,
                       .name = absl::StrCat("learner/", group_->rank()),
                       .seed = Mix64(options_.learner.seeds.policy, static_cast<uint64_t>(group_->rank())),
                       .batch = static_cast<uint32_t>(options_.learner.algorithm.batch)}));
    }
    return sampler_->Next(deadline);
  }

  // Repeats a call while a replay server is away, at most options.patience. Cancelled if a stop is requested
  // meanwhile.
  absl::Status AwaitServers(absl::FunctionRef<absl::Status()> call) {
    Patience patience(options_.patience, "are the replay servers alive?");
    for (;;) {
      const absl::Status status = call();
      if (!replay::MayRepeat(status)) return status;
      if (MustStop()) return absl::CancelledError("the learner was asked to stop");
      TANDEM_RETURN_IF_ERROR(patience.Check("the replay servers", status));
      absl::SleepFor(kCountPause);
    }
  }

  // If the tables have fewer transitions than learning begins with, the next ones fill them, and there are no
  // updates for those that are gone.
  void FillIfNeeded() {
    uint64_t items = 0;
    for (const Shard& shard : shards_) items += shard.items;
    if (items >= learning_starts()) return;
    fill_ = learning_starts() - items;
    seen_ = learned_;
  }

  // Adds the transitions that have come since the last call to seen_. Each step begins one. Returns true if
  // there are any. If some were lost, actors may wait for updates that never come; a version is then due.
  absl::StatusOr<bool> CountSteps() {
    uint64_t fresh = 0;
    bool lost = false;
    reason_ = absl::OkStatus();
    for (size_t i = 0; i < shards_.size(); ++i) {
      Shard& shard = shards_[i];
      const absl::StatusOr<replay::TableInfo> info =
          shard.replay->Info(kTransitionTable, MonotonicNow() + kLearnerSlice);
      shard.silent = !info.ok();
      if (!info.ok()) {
        if (!replay::MayRepeat(info.status())) return info.status();
        reason_ = Annotate(info.status(), absl::StrCat("replay/", i));
        continue;
      }
      if (info->server_incarnation != shard.incarnation || info->inserts < shard.inserts) {
        LogWarning(absl::StrCat("replay/", i, " has started again without its ", shard.items,
                                " transitions; the job goes on without them"));
        lost_ += shard.items;
        lost = true;
        shard.inserts = 0;
      }
      fresh += info->inserts - shard.inserts;
      shard.incarnation = info->server_incarnation;
      shard.inserts = info->inserts;
      shard.items = info->items;
    }
    const uint64_t filling = std::min(fill_, fresh);
    fill_ -= filling;
    seen_ += fresh - filling;
    if (lost) {
      FillIfNeeded();
      published_ = absl::InfinitePast();
    }
    return fresh > 0 && !lost;
  }

  // Rank 0 counts the steps, and waits for some if no update is due; the others learn their number, and for
  // how many transitions the tables wait. Ends early if a stop is requested.
  absl::Status ShareSeenSteps() {
    if (group_->rank() == 0) {
      const absl::Time begin = MonotonicNow();
      for (;;) {
        TANDEM_ASSIGN_OR_RETURN(const bool more, CountSteps());
        const absl::Time now = MonotonicNow();
        if (more) {
          idle_.Reset();
          published_ = now;
        }
        if (seen_ >= learned_ + update_every() || MustStop()) break;
        TANDEM_RETURN_IF_ERROR(idle_.Check("transitions", reason_));
        if (now - published_ >= kIdlePublish) {
          const absl::Status again = Publish(/*last=*/false);
          if (!again.ok() && !replay::MayRepeat(again)) return again;
        } else if (now - begin >= kLearnerSlice) {
          TANDEM_RETURN_IF_ERROR(publisher_.status());
          break;
        }
        absl::SleepFor(kCountPause);
      }
      TANDEM_RETURN_IF_ERROR(TakeEpisodeReports());
    }
    if (group_->world_size() > 1) {
      const WaitLog::Wait wait = WaitLog::Begin(options_.waits, "the steps that learner/0 has counted");
      TANDEM_ASSIGN_OR_RETURN(const std::string sent,
                              group_->BroadcastBytes(absl::StrCat(seen_, " ", fill_)));
      const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(sent, ' ');
      if (!absl::SimpleAtoi(parts.first, &seen_) || !absl::SimpleAtoi(parts.second, &fill_) ||
          seen_ < learned_) {
        return absl::InternalError(
            absl::StrCat("learner/0 sent '", sent, "' as the numbers of steps and missing transitions"));
      }
    }
    // The batches that were drawn ahead may come from tables that were nearly empty.
    if (fill_ > 0) sampler_ = nullptr;
    return absl::OkStatus();
  }

  absl::Status TakeEpisodeReports() {
    for (const Shard& shard : shards_) {
      if (shard.silent) continue;
      const absl::StatusOr<replay::Batch> batch = shard.replay->Sample(
          kEpisodeTable, {.batch = kEpisodesAtOnce, .min_batch = 1}, absl::InfinitePast());
      if (!batch.ok()) {
        if (replay::MayRepeat(batch.status())) continue;
        return batch.status();
      }
      const replay::BatchColumn *const returns = batch->Find("episode_return"), *const lengths = batch->Find(
                                                                                    "episode_length");
      if (returns == nullptr || lengths == nullptr || returns->total_steps != batch->size() ||
          lengths->total_steps != batch->size() || returns->column.dtype != DType::kF32 ||
          lengths->column.dtype != DType::kF32) {
        return absl::InternalError(absl::StrCat("table '", kEpisodeTable,
                                                "' gave items that are no episodes; actors and learners must "
                                                "run the same job"));
      }
      std::vector<Episode> episodes;
      for (size_t i = 0; i < batch->size(); ++i) {
        episodes.push_back({.episode_return = static_cast<double>(returns->values<float>()[i]),
                            .length = static_cast<int64_t>(lengths->values<float>()[i])});
      }
      AddEpisodes(episodes);
    }
    return absl::OkStatus();
  }

  // Waits for a batch, at most kBatchTime. Cancelled if a stop is requested meanwhile.
  absl::StatusOr<replay::ShardedBatch> NextBatch() {
    const absl::Time end = MonotonicNow() + kBatchTime;
    for (;;) {
      if (MustStop()) return absl::CancelledError("the learner was asked to stop");
      absl::StatusOr<replay::ShardedBatch> batch = Draw(MonotonicNow() + kLearnerSlice);
      if (batch.ok() || !replay::MayRepeat(batch.status())) return batch;
      TANDEM_RETURN_IF_ERROR(publisher_.status());
      if (MonotonicNow() > end) return batch;
      if (sampler_ == nullptr) absl::SleepFor(kCountPause);  // the attempt may have failed at once
    }
  }

  // Averages the gradients of the ranks that have a batch, and applies them. All ranks must call it.
  absl::Status Exchange(bool has_batch) {
    const absl::Span<float> gradients = update_->policy().parameters().gradients();
    float* const extras = sums_.data() + gradients.size();
    std::fill(sums_.begin(), sums_.end(), 0.0f);
    if (has_batch) std::copy(gradients.begin(), gradients.end(), sums_.begin());
    extras[kDrawnBatches] = has_batch ? 1 : 0;
    extras[kDqnStopRequests] = MustStop() ? 1 : 0;
    extras[kDqnInterruptions] = interrupt_requested_ ? 1 : 0;
    if (group_->world_size() > 1) {
      const WaitLog::Wait wait = WaitLog::Begin(options_.waits, kForGradients);
      TANDEM_RETURN_IF_ERROR(
          Annotate(group_->AllReduce(absl::MakeSpan(sums_)).Wait(), "averaging the learners' gradients"));
    }
    stopped_ = extras[kDqnStopRequests] > 0;
    interrupted_ = extras[kDqnInterruptions] > 0;
    drawn_ = extras[kDrawnBatches] > 0;
    if (!drawn_) return absl::OkStatus();
    const float share = 1.0f / extras[kDrawnBatches];
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = share * sums_[i];
    TANDEM_RETURN_IF_ERROR(update_->Apply(learned_));
    updates_ = update_->updates();
    env_steps_ = learned_ += update_every();
    if (env_steps_ >= target_steps_ + static_cast<uint64_t>(options_.learner.algorithm.target_every)) {
      update_->CopyToTarget();
      target_steps_ = env_steps_;
    }
    return absl::OkStatus();
  }

  weights::PublishInfo Info(bool last) const {
    return {.step = learned_, .items_consumed = seen_ - fill_, .last = last};
  }
  absl::Status Publish(bool last) {
    published_ = MonotonicNow();
    return publisher_.Publish(update_->policy(), Info(last));
  }

  const RoleLearnerOptions options_;
  std::vector<Shard> shards_;  // their figures are those of rank 0
  collectives::ProcessGroup* const group_;
  PolicyPublisher publisher_;
  Patience idle_, batchless_;
  std::unique_ptr<DqnUpdate> update_;
  std::unique_ptr<replay::ShardedSampler> sampler_;  // null while the tables fill
  uint64_t learned_ = 0;  // steps for which the updates have been done, with those that fill the tables
  uint64_t seen_ = 0;     // steps of the actors, likewise; at least learned_
  uint64_t fill_ = 0;     // transitions that the tables get before the next update; at most learning_starts()
  uint64_t lost_ = 0;     // transitions, with servers that have started again
  uint64_t restored_version_ = 0, target_steps_ = 0;
  std::vector<float> sums_;  // gradients, then the extras
  absl::Time published_;     // when steps came or weights were published, the later one
  absl::Status reason_;      // why a shard was last silent
  bool begun_ = false, drawn_ = false, stop_requested_ = false, interrupt_requested_ = false;
  bool stopped_before_ = false;  // it has not begun: a rank was asked to stop before
};

}  // namespace

absl::StatusOr<std::unique_ptr<Learner>> MakeDqnRoleLearner(const RoleLearnerOptions& options,
                                                            std::vector<replay::Replay*> shards,
                                                            weights::Weights* weights,
                                                            collectives::ProcessGroup* group) {
  TANDEM_ASSIGN_OR_RETURN(const AlgorithmKind* const kind, Algorithms().Get(options.learner.algorithm.kind));
  TANDEM_RETURN_IF_ERROR(Algorithms().Validate(*kind, options.learner.algorithm));
  if (options.learner.policy.normalize_observations) {
    return absl::InvalidArgumentError(
        "policy.normalize_observations: a dqn job of several processes does not count observations; leave it "
        "out");
  }
  auto learner = std::make_unique<DqnRoleLearner>(options, std::move(shards), weights, group);
  TANDEM_RETURN_IF_ERROR(learner->Init());
  return learner;
}

}  // namespace tandem::rl
