// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_POLICY_POLICY_H_
#define TANDEM_WORKER_RL_POLICY_POLICY_H_

// The base class of the policies of all algorithms: parameters, normalization of observations, and greedy
// actions. Learners know their kind of policy; evaluation and model files know only this.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "worker/nn/matrix.h"
#include "worker/nn/mlp.h"
#include "worker/nn/parameters.h"
#include "worker/rl/envs/environment.h"

namespace tandem::rl {

struct PolicyOptions {
  std::vector<int> hidden = {64, 64};
  worker::HiddenActivation activation = worker::HiddenActivation::kTanh;
  // Each number of an observation is shifted and scaled by its running mean and deviation, and clipped to
  // [-10, 10].
  bool normalize_observations = false;
};

// Not thread-safe.
class Policy {
 public:
  virtual ~Policy() = default;

  const EnvironmentSpec& environment() const { return environment_; }
  worker::Parameters& parameters() { return parameters_; }

  // Counts `observations` [batch x observation_size] in the running mean and variance. No effect unless the
  // options ask for normalization.
  void CountObservations(absl::Span<const float> observations);
  // Writes the observations as the networks take them; `normalized` has the same size and may be the same
  // memory.
  void Normalize(absl::Span<const float> observations, absl::Span<float> normalized) const;

  // Writes the best actions for observations as the environment gives them, as the environment takes them.
  void ActGreedily(absl::Span<const float> observations, size_t batch, absl::Span<float> actions);

 protected:
  Policy(const EnvironmentSpec& environment, const PolicyOptions& options, uint64_t seed);
  // Does the same for normalized observations.
  virtual void BestActions(const float* observations, size_t batch, absl::Span<float> actions) = 0;
  worker::ConstMatrix Rows(const float* observations) const {
    return {observations, environment_.observation_size, environment_.observation_size};
  }

  const EnvironmentSpec environment_;
  const PolicyOptions options_;
  worker::Parameters parameters_;

 private:
  // Offsets of running averages: mean and variance of each number, and the count of observations.
  size_t mean_ = 0, variance_ = 0, count_ = 0;
  std::vector<float> normalized_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_POLICY_POLICY_H_
