// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/policy/q_network.h"

#include <algorithm>
#include <numbers>

namespace tandem::rl {

QNetwork::QNetwork(const EnvironmentSpec& environment, const PolicyOptions& options, uint64_t seed)
    : Policy(environment, options, seed),
      network_({.name = "q",
                .in = static_cast<int>(environment.observation_size),
                .hidden = options.hidden,
                .output = environment.actions.choices,
                .activation = options.activation,
                .hidden_weights = {.orthogonal = true, .gain = std::numbers::sqrt2_v<float>},
                .output_weights = {.orthogonal = true, .gain = 0.01f}},
               &parameters_) {}

absl::Span<const float> QNetwork::Forward(const float* observations, size_t batch) {
  const worker::ConstMatrix x = Rows(observations);
  float* const values = worker::Grow(values_, batch * choices());
  network_.Forward({&x, 1}, batch, /*training=*/false, 0, {values, choices(), choices()});
  return {values, batch * choices()};
}

void QNetwork::Backward(const float* observations, size_t batch, const float* d_values) {
  const worker::ConstMatrix x = Rows(observations);
  network_.BackwardInputs(batch, {d_values, choices(), choices()}, 0.0f, {});
  network_.BackwardParameters({&x, 1}, batch, [](size_t, size_t) {});
}

void QNetwork::BestActions(const float* observations, size_t batch, absl::Span<float> actions) {
  const absl::Span<const float> values = Forward(observations, batch);
  for (size_t row = 0; row < batch; ++row) {
    const absl::Span<const float> of_row = values.subspan(row * choices(), choices());
    actions[row] = static_cast<float>(std::max_element(of_row.begin(), of_row.end()) - of_row.begin());
  }
}

}  // namespace tandem::rl
