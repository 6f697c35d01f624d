// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ACTOR_UNROLL_ACTOR_H_
#define TANDEM_WORKER_RL_ACTOR_UNROLL_ACTOR_H_

// Actors that write unrolls, the consecutive steps of an environment, into a queue, and act with the weights
// that a learner publishes.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "replay/client/replay.h"
#include "replay/client/ticket_holder.h"
#include "replay/client/writer.h"
#include "weights/client/weights.h"
#include "worker/rl/actor/action_source.h"
#include "worker/rl/envs/vector_environment.h"
#include "worker/rl/policy/actor_critic.h"

namespace tandem::rl {

// The names under which actors and learners meet.
inline constexpr char kUnrollTable[] = "unrolls";
inline constexpr char kPolicyModel[] = "policy";

// Returns the columns of a step in an unroll. `next_observation` is what the step led to: the last one of the
// old episode where one ends. `episode_return` and `episode_length` are those of an episode that ends with
// the step, else 0.
std::vector<replay::Column> UnrollColumns(const EnvironmentSpec& environment);
// Returns the queue of unrolls. Each is sampled once; `size` of them may wait.
replay::TableOptions UnrollQueue(const EnvironmentSpec& environment, uint64_t size);

struct UnrollActorOptions {
  EnvironmentOptions environment;
  size_t copies = 8;
  PolicyOptions policy;
  int unroll = 20;  // steps of each copy in an item
  uint64_t environment_seed = 1, policy_seed = 1;
  size_t index = 0;          // tells the actors of a job apart: each has its own environments and exploration
  uint64_t exploration = 0;  // tells the lives of an actor apart, which otherwise would repeat its actions
  // The largest number of tickets to ask for before acting, one for the unroll of each copy. An actor that
  // gets fewer acts in all copies and makes that many items. 0: the table is not paced.
  uint32_t tickets = 0;
};

// Acts in the copies of one actor. Each call of Act makes one item per copy, or per ticket. Not thread-safe.
class UnrollActor {
 public:
  // A `source` chooses the actions, and `weights` is then not used. Without one the actor chooses them, with
  // the weights that it takes. All three must outlive the actor. Errors: those of VectorEnvironment::Create
  // and Writer::Create.
  static absl::StatusOr<std::unique_ptr<UnrollActor>> Create(const UnrollActorOptions& options,
                                                             replay::Replay* replay,
                                                             weights::Weights* weights,
                                                             ActionSource* source = nullptr);

  // Gets the tickets for the next unroll (Replay::Admit), unless it has them; then renews them if that is
  // due. If all of them have ended before the unroll has begun, for example because their server has started
  // again, it gets others. Blocks until the table grants some, or `deadline`. No effect if the table is not
  // paced. Errors: those of Replay::Admit.
  absl::Status Admit(absl::Time deadline);
  // Returns true if the weights are older than those that the tickets require.
  bool behind() const { return model_ == nullptr || IsBehind(model_->info.version); }
  // Takes the newest weights. Returns false if there are none newer than those that it has by `deadline`.
  // Errors: those of Weights::Newer, and FailedPrecondition for a model of another job.
  absl::StatusOr<bool> TakeWeights(absl::Time deadline);
  // Acts for one unroll in each copy and makes an item of each, or of as many as there are tickets. Requires
  // tickets if the table is paced. Requires weights that are not behind(), and then does not block; otherwise
  // blocks for the source, until `deadline`. After DeadlineExceeded and Unavailable of the source (which
  // include that its weights are behind) the next call goes on with the same step. Other errors are those of
  // VectorEnvironment::Step; the actor must not be used any more after one.
  absl::Status Act(absl::Time deadline = absl::InfiniteFuture());
  // Asks the source with which weights it acts, so that last() is up to date. Requires a source.
  absl::Status AskWhetherLast(absl::Time deadline);
  // Returns true if the weights that acted last are the learner's last ones.
  bool last() const { return last_ || (model_ != nullptr && model_->info.last); }
  // Inserts the items that Act has made. Blocks while the queue is full, until `deadline`. After
  // DeadlineExceeded and Unavailable the next call inserts the rest. Items whose tickets have ended meanwhile
  // are lost; their table counts them.
  absl::Status Deliver(absl::Time deadline);

  // The weights with which it acts; nullptr before the first ones.
  const std::shared_ptr<const weights::Model>& model() const { return model_; }
  // Steps of all copies.
  uint64_t env_steps() const { return env_steps_; }
  // Returns the episodes that have ended since the last call.
  std::vector<Episode> TakeEpisodes() { return std::exchange(episodes_, {}); }

 private:
  // The values of one unroll, time by time.
  struct Columns {
    std::vector<float> observations, actions, log_probabilities, rewards, next_observations, episode_returns,
        episode_lengths;
    std::vector<uint8_t> terminated, truncated, first;
    std::vector<int64_t> versions;  // of the weights, one for each time
  };

  UnrollActor(const UnrollActorOptions& options, replay::Replay* replay, weights::Weights* weights,
              ActionSource* source, std::unique_ptr<VectorEnvironment> environments);
  // Renews the tickets whose lease has run for a third.
  void RenewTickets();
  // Returns true if the tickets require a later version. Both numbers count: the table compares those of the
  // steps, and a version of an earlier life of the learner may have any number.
  bool IsBehind(const weights::ModelVersion& version) const {
    return version.number < required_version_.number || version.epoch < required_version_.epoch;
  }
  // Forgets the tickets, and the version that they require.
  void DropTickets();
  // Chooses the actions of the step that begins at `row`.
  absl::Status Choose(size_t row, absl::Time deadline);
  absl::Status Write();

  replay::Replay* const replay_;
  weights::Weights* const weights_;
  ActionSource* const source_;
  const std::unique_ptr<VectorEnvironment> environments_;
  ActorCritic policy_;
  const size_t copies_, steps_, observation_size_, action_size_;
  const std::string name_;
  const uint32_t max_tickets_;
  CounterRandom acting_;
  std::unique_ptr<replay::Writer> writer_;
  std::shared_ptr<const weights::Model> model_;
  Columns unroll_;
  std::vector<uint8_t> begins_;  // of each copy: its next step is the first of an episode
  std::vector<float> normalized_, taken_, values_;
  std::vector<replay::Ticket> tickets_;      // for the next items
  replay::TicketHolder held_{kUnrollTable};  // the same, for the renewal of their leases
  bool tickets_ended_ = false;               // all of them, as their server has said
  weights::ModelVersion required_version_;   // of the weights, by the tickets
  size_t first_copy_ = 0;                    // the one that the first ticket is for
  size_t row_ = 0;                           // of the next step in the unroll
  bool last_ = false;                        // the source has said so
  uint64_t env_steps_ = 0;
  std::vector<Episode> episodes_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ACTOR_UNROLL_ACTOR_H_
