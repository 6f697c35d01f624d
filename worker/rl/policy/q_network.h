// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_RL_POLICY_Q_NETWORK_H_
#define TANDEM_WORKER_RL_POLICY_Q_NETWORK_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "worker/nn/mlp.h"
#include "worker/rl/policy/policy.h"

namespace tandem::rl {

// A network that estimates the value of each choice of an action. The greedy policy takes the choice of the
// greatest value. Requires a discrete action space. Observations are normalized ones (Policy::Normalize). Not
// thread-safe.
class QNetwork : public Policy {
 public:
  QNetwork(const EnvironmentSpec& environment, const PolicyOptions& options, uint64_t seed);

  size_t choices() const { return static_cast<size_t>(environment_.actions.choices); }
  // Computes the values [batch x choices] and returns them. They stay valid until the next call.
  absl::Span<const float> Forward(const float* observations, size_t batch);
  // Writes the gradients of all parameters from that of the values. `observations` and `batch` are those of
  // the last Forward.
  void Backward(const float* observations, size_t batch, const float* d_values);

 protected:
  void BestActions(const float* observations, size_t batch, absl::Span<float> actions) override;

 private:
  worker::Mlp network_;
  worker::AlignedFloats values_;
};

}  // namespace tandem::rl

#endif  // TANDEM_WORKER_RL_POLICY_Q_NETWORK_H_
