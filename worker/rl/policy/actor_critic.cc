// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/policy/actor_critic.h"

#include <numbers>
#include <vector>

namespace tandem::rl {
namespace {

worker::MlpOptions NetworkOptions(const char* name, const EnvironmentSpec& environment,
                                  const PolicyOptions& options, size_t output, float gain) {
  return {.name = name,
          .in = static_cast<int>(environment.observation_size),
          .hidden = options.hidden,
          .output = static_cast<int>(output),
          .activation = options.activation,
          .hidden_weights = {.orthogonal = true, .gain = std::numbers::sqrt2_v<float>},
          .output_weights = {.orthogonal = true, .gain = gain}};
}

}  // namespace

ActorCritic::ActorCritic(const EnvironmentSpec& environment, const PolicyOptions& options, uint64_t seed)
    : Policy(environment, options, seed),
      distribution_(environment.actions),
      actor_(NetworkOptions("policy", environment, options, distribution_.head_size(), 0.01f), &parameters_),
      critic_(NetworkOptions("value", environment, options, 1, 1.0f), &parameters_) {
  if (distribution_.log_std_size() > 0) {
    log_std_ = parameters_.AddZeros("policy.log_std", {static_cast<int>(distribution_.log_std_size())},
                                    /*decay=*/false);
  }
}

void ActorCritic::Reserve(size_t batch) {
  worker::Grow(heads_, batch * distribution_.head_size());
  worker::Grow(d_heads_, batch * distribution_.head_size());
  worker::Grow(values_, batch);
  worker::Grow(d_values_, batch);
}

void ActorCritic::Forward(const float* observations, size_t batch) {
  Reserve(batch);
  const worker::ConstMatrix x = Rows(observations);
  const size_t heads = distribution_.head_size();
  actor_.Forward({&x, 1}, batch, /*training=*/false, 0, {heads_.data(), heads, heads});
  critic_.Forward({&x, 1}, batch, /*training=*/false, 0, {values_.data(), 1, 1});
}

void ActorCritic::Values(const float* observations, size_t batch, absl::Span<float> values) {
  const worker::ConstMatrix x = Rows(observations);
  critic_.Forward({&x, 1}, batch, /*training=*/false, 0, {values.data(), 1, 1});
}

void ActorCritic::Act(const float* observations, size_t batch, CounterRandom& random,
                      absl::Span<float> actions, absl::Span<float> log_probabilities,
                      absl::Span<float> values) {
  Forward(observations, batch);
  const size_t size = distribution_.action_size();
  for (size_t row = 0; row < batch; ++row) {
    log_probabilities[row] = static_cast<float>(
        distribution_.Sample(head(row), log_std(), random, actions.subspan(row * size, size)));
    values[row] = values_[row];
  }
}

void ActorCritic::Backward(const float* observations, size_t batch) {
  const worker::ConstMatrix x = Rows(observations);
  const size_t heads = distribution_.head_size();
  const auto ignore = [](size_t, size_t) {};
  actor_.BackwardInputs(batch, {d_heads_.data(), heads, heads}, 0.0f, {});
  actor_.BackwardParameters({&x, 1}, batch, ignore);
  critic_.BackwardInputs(batch, {d_values_.data(), 1, 1}, 0.0f, {});
  critic_.BackwardParameters({&x, 1}, batch, ignore);
}

void ActorCritic::BestActions(const float* observations, size_t batch, absl::Span<float> actions) {
  Reserve(batch);
  const worker::ConstMatrix x = Rows(observations);
  const size_t heads = distribution_.head_size(), size = distribution_.action_size();
  actor_.Forward({&x, 1}, batch, /*training=*/false, 0, {heads_.data(), heads, heads});
  std::vector<float> action(size);
  for (size_t row = 0; row < batch; ++row) {
    distribution_.Mode(head(row), absl::MakeSpan(action));
    distribution_.ToEnvironment(action, actions.subspan(row * size, size));
  }
}

}  // namespace tandem::rl
