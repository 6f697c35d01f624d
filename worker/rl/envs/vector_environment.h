// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_ENVS_VECTOR_ENVIRONMENT_H_
#define TANDEM_WORKER_RL_ENVS_VECTOR_ENVIRONMENT_H_

// Several copies of an environment that step together, with time limit and automatic reset.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/rl/envs/environment.h"

namespace tandem::rl {

// An episode that has ended.
struct Episode {
  size_t environment = 0;  // index of the copy
  double episode_return = 0;
  int64_t length = 0;
};

// Not thread-safe. Episode e of copy i draws its numbers from (seed, i, e), so what a copy does depends
// neither on the other copies nor on their number.
class VectorEnvironment {
 public:
  using Factory = std::function<std::unique_ptr<Environment>()>;

  // Makes `count` > 0 copies and begins an episode in each. Errors are those of MakeEnvironment.
  static absl::StatusOr<std::unique_ptr<VectorEnvironment>> Create(const EnvironmentOptions& options,
                                                                   size_t count, uint64_t seed);
  // Does the same with environments of another maker. `name` is for errors; `max_steps` of 0 means no limit.
  VectorEnvironment(std::string name, const Factory& make, int max_steps, size_t count, uint64_t seed);

  size_t count() const { return copies_.size(); }
  const EnvironmentSpec& spec() const { return spec_; }
  Environment& copy(size_t index) { return *copies_[index].environment; }

  // Does one step in each copy with `actions` [count x dimensions]. A copy whose episode ends begins the next
  // one at once. Internal, naming the copy and the step, if a reward or observation is not finite, and
  // InvalidArgument for an action that does not exist; the object must not be used any more after an error.
  absl::Status Step(absl::Span<const float> actions);

  // The observations [count x observation_size], with which the next step's actions are chosen.
  absl::Span<const float> observations() const { return observations_; }
  // Return one value of the last step for each copy. `terminated` and `truncated` are apart, and both 1 if
  // the episode comes to its end in the last step that the limit allows. Only after termination is the value
  // of what follows 0.
  absl::Span<const float> rewards() const { return rewards_; }
  absl::Span<const uint8_t> terminated() const { return terminated_; }
  absl::Span<const uint8_t> truncated() const { return truncated_; }
  // Returns what the last step led to [count x observation_size]: the last observation of the old episode
  // where one has ended, and otherwise that of observations().
  absl::Span<const float> final_observations() const { return final_observations_; }
  // The episodes that ended in the last step.
  const std::vector<Episode>& ended() const { return ended_; }

 private:
  struct Copy {
    std::unique_ptr<Environment> environment;
    CounterRandom random{0, 0};
    uint64_t episodes = 0;  // begun
    int64_t steps = 0;      // of this episode
    double episode_return = 0;
  };

  void Begin(size_t index);
  absl::Status StepCopy(size_t index, absl::Span<const float> action);
  absl::Status NotFinite(size_t index, const char* what, double value) const;
  absl::Span<float> Row(std::vector<float>& rows, size_t index) {
    return absl::MakeSpan(rows).subspan(index * spec_.observation_size, spec_.observation_size);
  }

  const std::string name_;
  const int64_t max_steps_;
  const uint64_t seed_;
  EnvironmentSpec spec_;
  std::vector<Copy> copies_;
  std::vector<float> observations_, final_observations_, rewards_;
  std::vector<uint8_t> terminated_, truncated_;
  std::vector<Episode> ended_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_ENVS_VECTOR_ENVIRONMENT_H_
