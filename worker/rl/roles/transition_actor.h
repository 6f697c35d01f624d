// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ROLES_TRANSITION_ACTOR_H_
#define TANDEM_WORKER_RL_ROLES_TRANSITION_ACTOR_H_

// Actors that write the transitions of DQN into a replay table, as in Ape-X (Horgan et al., ICLR 2018).

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "replay/client/replay.h"
#include "replay/client/writer.h"
#include "replay/table/table_options.h"
#include "weights/client/weights.h"
#include "worker/rl/envs/vector_environment.h"
#include "worker/rl/kernels/n_step.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/policy/q_network.h"

namespace tandem::rl {

// The table of the episodes that have ended, for reports: columns `episode_return` and `episode_length`. Each
// is sampled once. A learner that does not take them holds nobody up: the oldest ones leave.
inline constexpr char kEpisodeTable[] = "episodes";
replay::TableOptions EpisodeTableOptions();

// Returns how many steps the actors of a DQN job were ahead of the updates when a version was published. Its
// `step` is the number of steps for which the updates had been done, and its `items_consumed` the number of
// steps that the learner had seen. Negative while the tables are filled.
int64_t LeadOf(const weights::ModelInfo& info);
// Returns the lead at which actors wait for the learner. One actor that reaches it has made enough
// transitions for an update.
int64_t GreatestLead(const LearnerOptions& options);

struct TransitionActorOptions {
  LearnerOptions learner;
  size_t index = 0;   // tells the actors of a job apart: each has its own environments and exploration
  size_t actors = 1;  // of the job
  uint64_t life = 0;  // tells the lives of an actor apart, which otherwise would repeat its episodes
};

// Acts in the copies of one actor. Not thread-safe.
class TransitionActor {
 public:
  // Both must outlive the actor. Errors: those of VectorEnvironment::Create and Writer::Create.
  static absl::StatusOr<std::unique_ptr<TransitionActor>> Create(const TransitionActorOptions& options,
                                                                 replay::Replay* replay,
                                                                 weights::Weights* weights);

  // Takes the newest weights. Returns false if there are none newer than those that it has by `deadline`.
  // Errors: those of Weights::Newer, and FailedPrecondition for a model of another job.
  absl::StatusOr<bool> TakeWeights(absl::Time deadline);
  // Returns true if it must wait for weights: there are none, or the learner is far behind, as far as its
  // last version and the own steps since then tell.
  bool must_wait() const {
    return model_ == nullptr || LeadOf(model_->info) + acted_ > GreatestLead(options_.learner);
  }
  // Returns true if the weights are the learner's last ones.
  bool last() const { return model_ != nullptr && model_->info.last; }
  // Does some steps in each copy and makes items of the transitions that they complete. Requires weights.
  // Errors: those of VectorEnvironment::Step, and of Writer::Append other than DeadlineExceeded.
  absl::Status Act();
  // Inserts the items that Act has made. Blocks until `deadline`. After DeadlineExceeded and Unavailable the
  // next call inserts the rest.
  absl::Status Deliver(absl::Time deadline);

  const std::shared_ptr<const weights::Model>& model() const { return model_; }
  // Returns the steps of all copies.
  uint64_t env_steps() const { return env_steps_; }

 private:
  TransitionActor(const TransitionActorOptions& options, weights::Weights* weights,
                  std::unique_ptr<VectorEnvironment> environments);
  absl::Status Store(const NStepTransition& transition);

  const TransitionActorOptions options_;
  weights::Weights* const weights_;
  const std::unique_ptr<VectorEnvironment> environments_;
  QNetwork policy_;
  const size_t observation_size_;
  CounterRandom exploring_;
  std::shared_ptr<const weights::Model> model_;
  int64_t acted_ = 0;  // steps of all copies with this model
  uint64_t env_steps_ = 0;
  std::unique_ptr<replay::Writer> transitions_, episodes_;
  std::vector<NStepAdder> adders_;  // of each copy
  std::vector<float> previous_, normalized_, actions_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ROLES_TRANSITION_ACTOR_H_
