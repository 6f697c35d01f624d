// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_LEARNER_LEARNER_H_
#define TANDEM_WORKER_RL_LEARNER_LEARNER_H_

// A learning algorithm with the environments in which it acts.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "worker/nn/dense_optimizer.h"
#include "worker/rl/envs/environment.h"
#include "worker/rl/envs/vector_environment.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// Names an algorithm and gives its parameters. Fields that the kind does not have are ignored.
struct AlgorithmOptions {
  std::string kind = "ppo";  // a kind of Algorithms() (registry.h)
  double lr = 2.5e-4, lr_end = 0;
  double adam_epsilon = 1e-5;
  double gamma = 0.99;
  double max_gradient_norm = 0.5;
  double reward_scale = 1;
  // ppo
  int unroll = 128, epochs = 4, minibatches = 4;
  double lambda = 0.95, clip = 0.2, entropy = 0.01, value_coefficient = 0.5;
  // dqn
  int n_step = 3, batch = 64, replay_size = 50000, learning_starts = 1000, update_every = 4,
      target_every = 2000;
  double epsilon_start = 1, epsilon_end = 0.05, epsilon_fraction = 0.1, epsilon_spread = 1;
  std::string target = "double";
  double priority_exponent = 0.6, importance_exponent = 0.4;
  // impala
  std::string staleness = "pace";
  int queue = 16, max_lag = 4;
  double clip_rho = 1, clip_c = 1;
};

// The seeds of the random numbers for different purposes. None of them influences what another one decides.
struct Seeds {
  uint64_t environment = 1;  // first states, random steps
  uint64_t policy = 1;       // parameters, exploration, order of minibatches, samples from replay
  uint64_t evaluation = 1;   // the environments of the evaluation
};

struct LearnerOptions {
  EnvironmentOptions environment;
  size_t environments = 8;  // copies, of each actor
  size_t actors = 1;        // threads that act, of an algorithm with actors
  bool lockstep = false;    // actors and learner take turns on one thread
  PolicyOptions policy;
  AlgorithmOptions algorithm;
  Seeds seeds;
  uint64_t env_steps = 500000;  // planned; the schedules of rates end there
};

// The lags of the unrolls that a learner has taken: how many versions the weights had advanced since those
// with which an unroll was begun.
struct LagFigures {
  uint64_t unrolls = 0;   // taken, with those that were dropped
  uint64_t dropped = 0;   // their lag was greater than algorithm.max_lag
  uint64_t greatest = 0;  // of those that were used
  double sum = 0;         // of those that were used
  double mean() const { return unrolls > dropped ? sum / static_cast<double>(unrolls - dropped) : 0; }
};

// The state of a learner in a checkpoint, beside the parameters of its policy. A run that goes on from it
// begins new episodes, and DQN fills its replay table anew.
struct LearnerState {
  uint64_t env_steps = 0, updates = 0;
  uint64_t version = 0;  // of the weights that were published last, of an algorithm with actors
  worker::DenseOptimizerState optimizer;
  std::vector<float> target;  // the parameters of DQN's target network
};

using Figures = std::vector<std::pair<absl::string_view, double>>;  // names are string literals

// Not thread-safe. Uses only the calling thread, and a run gives the same parameters each time it is
// repeated, unless its algorithm has actors that do not run in lockstep: these have threads of their own.
class Learner {
 public:
  virtual ~Learner() = default;

  // Collects some steps and learns from them: the unit in which a run can be stopped. DQN does at most 32
  // steps in each copy or 256 updates, PPO an unroll with all its epochs, IMPALA one update. Errors: those of
  // VectorEnvironment::Step; Internal if a gradient is not finite. The learner must not be used any more
  // after an error.
  virtual absl::Status Advance() = 0;
  // Asks the learner to end: stopped() is true at once, or after a further call of Advance if it must agree
  // with other processes.
  // `interrupted`: the run is to go on later; otherwise it has reached its goal.
  virtual void RequestStop(bool interrupted) {
    stopped_ = true;
    interrupted_ = interrupted;
  }
  bool stopped() const { return stopped_; }
  bool interrupted() const { return interrupted_; }
  // Tells other processes that there will be no further Advance. Errors are those of the connections.
  virtual absl::Status Finish() { return absl::OkStatus(); }
  virtual Policy& policy() = 0;
  // Returns the state for a checkpoint.
  virtual LearnerState state() const = 0;
  // Goes on from a checkpoint. Called before the first Advance, when policy() has its parameters already.
  // InvalidArgument, after which the learner must not be used, if the state is that of another job.
  virtual absl::Status Restore(const LearnerState& state) = 0;
  // Returns figures of the last update, by the tags of TensorBoard.
  virtual Figures figures() const = 0;
  // Returns the lags of an algorithm with actors.
  virtual std::optional<LagFigures> lag() const { return std::nullopt; }

  // Steps of all copies of the environment, and updates of the parameters.
  uint64_t env_steps() const { return env_steps_; }
  uint64_t updates() const { return updates_; }
  // Returns the episodes that have ended since the last call.
  std::vector<Episode> TakeEpisodes() { return std::exchange(episodes_, {}); }

 protected:
  // Counts a step of `environments` and collects its episodes.
  void CountStep(const VectorEnvironment& environments) {
    env_steps_ += environments.count();
    AddEpisodes(environments.ended());
  }
  void AddEpisodes(const std::vector<Episode>& ended) {
    episodes_.insert(episodes_.end(), ended.begin(), ended.end());
  }

  uint64_t env_steps_ = 0, updates_ = 0;
  bool stopped_ = false, interrupted_ = false;

 private:
  std::vector<Episode> episodes_;
};

// Makes the learner of options.algorithm.kind. InvalidArgument names the field that is wrong: one out of its
// range, fields that contradict each other, or an algorithm that cannot handle the environment's actions.
absl::StatusOr<std::unique_ptr<Learner>> MakeLearner(const LearnerOptions& options);
// Makes the policy that such a learner trains, with its first parameters.
absl::StatusOr<std::unique_ptr<Policy>> MakePolicy(const LearnerOptions& options);

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_LEARNER_LEARNER_H_
