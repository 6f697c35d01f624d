// SPDX-License-Identifier: Apache-2.0
// IMPALA (Espeholt et al., ICML 2018) in one process: actors on threads of their own, a queue of unrolls, and
// a learner that publishes its weights after each update.

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "replay/client/local_replay.h"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"
#include "weights/store/model_store.h"
#include "worker/rl/actor/committed_table.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/learner/impala_update.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {
namespace {

// How long Advance waits for a batch before the caller may look whether to stop.
constexpr absl::Duration kPatience = absl::Milliseconds(200);

class Impala : public Learner {
 public:
  explicit Impala(const LearnerOptions& options) : options_(options), weights_(&store_) {}
  ~Impala() override {
    stop_ = true;
    replay_.Stop();
    store_.Stop();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Init() {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Environment> environment,
                            MakeEnvironment(options_.environment));
    TANDEM_ASSIGN_OR_RETURN(update_, ImpalaUpdate::Create(options_, environment->spec()));
    replay::TableOptions table = UnrollTableOptions(options_, environment->spec());
    table.staleness.lease = table.staleness.max_rollout;  // the actors die with this process only
    // The learner takes no unrolls while an actor inserts its own in lockstep, so there must be room for
    // these.
    if (options_.lockstep) {
      table = UnrollQueue(environment->spec(),
                          static_cast<uint64_t>(options_.algorithm.queue) + options_.environments);
    }
    TANDEM_RETURN_IF_ERROR(replay_.CreateTable(table));
    return MakeActors();
  }

  absl::Status Advance() override {
    TANDEM_RETURN_IF_ERROR(Begin());
    if (options_.lockstep) TANDEM_RETURN_IF_ERROR(Step(actors_[next_actor_++ % actors_.size()].get()));
    TakeReports();
    for (;;) {
      const absl::Time deadline = options_.lockstep ? absl::InfinitePast() : MonotonicNow() + kPatience;
      const absl::StatusOr<replay::Batch> batch = replay_.Sample(
          kUnrollTable, {.batch = static_cast<uint32_t>(options_.algorithm.batch)}, deadline, "learner");
      TakeReports();
      if (!batch.ok()) {
        TANDEM_RETURN_IF_ERROR(ActorError());
        if (absl::IsDeadlineExceeded(batch.status())) return absl::OkStatus();
        return batch.status();
      }
      TANDEM_RETURN_IF_ERROR(update_->ComputeGradients(*batch, publisher_->version().number));
      consumed_ += batch->size();
      if (update_->has_gradients()) {
        TANDEM_RETURN_IF_ERROR(update_->Apply(env_steps_));
        updates_ = update_->updates();
      }
      // A paced table admits further unrolls when a version is committed, so each batch ends with one.
      if (update_->has_gradients() || IsPaced(options_)) TANDEM_RETURN_IF_ERROR(Publish());
      // Threads have more unrolls at any time; in lockstep those that are there are taken first.
      if (!options_.lockstep) return absl::OkStatus();
    }
  }

  Policy& policy() override { return update_->policy(); }
  Figures figures() const override { return update_->figures(); }
  std::optional<LagFigures> lag() const override { return update_->lag(); }
  LearnerState state() const override {
    return {.env_steps = env_steps_,
            .updates = updates_,
            .version = publisher_ == nullptr ? first_version_ : publisher_->version().number,
            .optimizer = update_->optimizer().state()};
  }
  absl::Status Restore(const LearnerState& state) override {
    TANDEM_RETURN_IF_ERROR(update_->Restore(state));
    env_steps_ = state.env_steps;
    updates_ = state.updates;
    first_version_ = state.version;
    {
      absl::MutexLock lock(&mutex_);
      acted_steps_ = state.env_steps;
    }
    actors_.clear();
    return MakeActors();
  }

 private:
  absl::Status MakeActors() {
    for (size_t i = 0; i < options_.actors; ++i) {
      UnrollActorOptions actor = ActorOptions(options_, i);
      if (env_steps_ > 0) {  // a run that goes on repeats neither episodes nor actions
        actor.environment_seed = Mix64(actor.environment_seed, env_steps_);
        actor.exploration = env_steps_;
      }
      TANDEM_ASSIGN_OR_RETURN(actors_.emplace_back(), UnrollActor::Create(actor, &replay_, &weights_));
    }
    return absl::OkStatus();
  }

  // Publishes the first weights and starts the actors, once.
  absl::Status Begin() {
    if (publisher_ != nullptr) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(publisher_,
                            weights::Publisher::Create(&weights_,
                                                       {.model = kPolicyModel,
                                                        .name = "learner",
                                                        .after_version = first_version_,
                                                        .commit_to = IsPaced(options_) ? &table_ : nullptr,
                                                        .repair_every = absl::ZeroDuration()},
                                                       absl::InfiniteFuture()));
    TANDEM_RETURN_IF_ERROR(Publish());
    if (options_.lockstep) return absl::OkStatus();
    for (const std::unique_ptr<UnrollActor>& actor : actors_)
      threads_.emplace_back([this, &actor] { Run(actor.get()); });
    return absl::OkStatus();
  }

  absl::Status Publish() {
    return publisher_
        ->Publish(TensorsOf(update_->policy()), {.step = updates_, .items_consumed = consumed_},
                  absl::InfiniteFuture())
        .status();
  }

  // Does one unroll of an actor.
  absl::Status Step(UnrollActor* actor) {
    TANDEM_RETURN_IF_ERROR(actor->Admit(absl::InfiniteFuture()));
    TANDEM_RETURN_IF_ERROR(actor->TakeWeights(MonotonicNow()));
    const uint64_t before = actor->env_steps();
    TANDEM_RETURN_IF_ERROR(actor->Act());
    {
      absl::MutexLock lock(&mutex_);
      acted_steps_ += actor->env_steps() - before;
      const std::vector<Episode> ended = actor->TakeEpisodes();
      acted_episodes_.insert(acted_episodes_.end(), ended.begin(), ended.end());
    }
    return actor->Deliver(absl::InfiniteFuture());
  }

  // The thread of an actor.
  void Run(UnrollActor* actor) {
    absl::Status status;
    while (status.ok() && !stop_) status = Step(actor);
    if (status.ok() || stop_) return;
    {
      absl::MutexLock lock(&mutex_);
      actor_error_.Update(status);
    }
    replay_.Stop();  // the learner need not wait for what does not come
  }

  void TakeReports() {
    absl::MutexLock lock(&mutex_);
    env_steps_ = acted_steps_;
    AddEpisodes(std::exchange(acted_episodes_, {}));
  }
  absl::Status ActorError() const {
    absl::MutexLock lock(&mutex_);
    return actor_error_;
  }

  const LearnerOptions options_;
  replay::LocalReplay replay_;
  CommittedTable table_{&replay_, kUnrollTable};
  weights::ModelStore store_;
  weights::LocalWeights weights_;
  std::unique_ptr<ImpalaUpdate> update_;
  std::unique_ptr<weights::Publisher> publisher_;
  std::vector<std::unique_ptr<UnrollActor>> actors_;
  uint64_t consumed_ = 0;       // unrolls
  uint64_t first_version_ = 0;  // the version of the checkpoint
  size_t next_actor_ = 0;       // in lockstep
  std::atomic<bool> stop_{false};
  mutable absl::Mutex mutex_;
  uint64_t acted_steps_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Episode> acted_episodes_ ABSL_GUARDED_BY(mutex_);
  absl::Status actor_error_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

absl::StatusOr<std::unique_ptr<Learner>> MakeImpala(const LearnerOptions& options) {
  auto learner = std::make_unique<Impala>(options);
  TANDEM_RETURN_IF_ERROR(learner->Init());
  return learner;
}

std::optional<FieldConflict> CheckQueue(const AlgorithmOptions& o) {
  if (o.queue >= o.batch) return std::nullopt;
  return FieldConflict{
      .field = "queue",
      .job_message = absl::StrCat("must be at least 'batch', ", o.batch,
                                  ": the learner would wait for a batch for ever"),
      .message = absl::StrCat("queue is ", o.queue, "; it must be at least batch, ", o.batch)};
}

}  // namespace

AlgorithmKind ImpalaKind() {
  using O = AlgorithmOptions;
  std::vector<ConfigField<O>> fields = CommonFields(6e-4, 0.5);
  const std::vector<ConfigField<O>> own = {
      MemberField<&O::unroll>({.name = "unroll",
                               .help = "steps of each environment between updates",
                               .range = Between(1, 1 << 20),
                               .default_value = 20}),
      MemberField<&O::batch>({.name = "batch",
                              .help = "unrolls of an update, each of one environment",
                              .range = Between(1, 1 << 16),
                              .default_value = 8}),
      MemberField<&O::max_lag>({.name = "max_lag",
                                .help =
                                    "versions by which the weights may have advanced, at most, between the "
                                    "begin of an unroll and the update that uses it",
                                .range = Between(0, 1 << 30),
                                .default_value = 4}),
      MemberField<&O::staleness>(
          {.name = "staleness",
           .help =
               "what keeps unrolls within `max_lag`: actors begin unrolls at the learner's pace (`pace`), or "
               "unrolls that lag more are dropped, and counted (`queue`)",
           .choices = {"pace", "queue"}}),
      MemberField<&O::queue>({.name = "queue",
                              .help = "unrolls that may wait for the learner with `staleness: queue` and in "
                                      "lockstep; while there are so many, actors wait; at least `batch`",
                              .range = Between(1, 1 << 20),
                              .default_value = 16}),
      MemberField<&O::lambda>({.name = "lambda",
                               .help = "weight of longer returns in V-trace",
                               .range = Between(0, 1),
                               .default_value = 1}),
      MemberField<&O::clip_rho>(
          {.name = "clip_rho",
           .help = "upper limit of the ratio of probabilities in V-trace's differences and in "
                   "the policy's gradient",
           .range = Above(0),
           .default_value = 1}),
      MemberField<&O::clip_c>(
          {.name = "clip_c",
           .help = "upper limit of that ratio in the factors by which V-trace reaches back",
           .range = Above(0),
           .default_value = 1})};
  fields.insert(fields.end(), own.begin(), own.end());
  const std::vector<ConfigField<O>> losses = ActorCriticLossFields();
  fields.insert(fields.end(), losses.begin(), losses.end());
  return {.name = "impala",
          .summary =
              "actors on threads of their own and one learner, whose targets V-trace corrects for their lag",
          .reference = "Espeholt et al., ICML 2018",
          .fields = std::move(fields),
          .check = CheckQueue,
          .build = {.supports = [](const EnvironmentSpec&) { return absl::OkStatus(); },
                    .learner = MakeImpala,
                    .policy = MakeActorCritic,
                    .has_actors = true,
                    .has_roles = true}};
}

}  // namespace tandem::rl
