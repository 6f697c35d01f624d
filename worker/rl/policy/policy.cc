// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/policy/policy.h"

#include <algorithm>
#include <cmath>

namespace tandem::rl {

Policy::Policy(const EnvironmentSpec& environment, const PolicyOptions& options, uint64_t seed)
    : environment_(environment), options_(options), parameters_(seed) {
  if (!options.normalize_observations) return;
  const int size = static_cast<int>(environment.observation_size);
  mean_ = parameters_.AddRunningAverages("observations.mean", size, 0.0f);
  variance_ = parameters_.AddRunningAverages("observations.variance", size, 1.0f);
  count_ = parameters_.AddRunningAverages("observations.count", 1, 0.0f);
}

void Policy::CountObservations(absl::Span<const float> observations) {
  if (!options_.normalize_observations) return;
  const size_t size = environment_.observation_size;
  const auto batch = static_cast<double>(observations.size() / size);
  if (batch == 0) return;
  float* const count = parameters_.running_average(count_);
  // Combines the moments of the batch with those before (Chan, Golub and LeVeque, 1983).
  const double before = *count, total = before + batch;
  for (size_t i = 0; i < size; ++i) {
    double sum = 0, squares = 0;
    for (size_t at = i; at < observations.size(); at += size) sum += observations[at];
    const double batch_mean = sum / batch;
    for (size_t at = i; at < observations.size(); at += size)
      squares += (observations[at] - batch_mean) * (observations[at] - batch_mean);
    float& mean = *parameters_.running_average(mean_ + i);
    float& variance = *parameters_.running_average(variance_ + i);
    const double difference = batch_mean - mean;
    const double moment = variance * before + squares + difference * difference * before * batch / total;
    mean = static_cast<float>(mean + difference * batch / total);
    variance = static_cast<float>(moment / total);
  }
  // A float counts exactly up to 2^24; from there on old observations fade.
  *count = static_cast<float>(std::min(total, 0x1.0p24));
}

void Policy::Normalize(absl::Span<const float> observations, absl::Span<float> normalized) const {
  if (!options_.normalize_observations) {
    std::copy(observations.begin(), observations.end(), normalized.begin());
    return;
  }
  const size_t size = environment_.observation_size;
  // running_averages() has no const form that returns an element.
  worker::Parameters& parameters = const_cast<worker::Parameters&>(parameters_);
  const float* const mean = parameters.running_average(mean_);
  const float* const variance = parameters.running_average(variance_);
  for (size_t at = 0; at < observations.size(); ++at) {
    const size_t i = at % size;
    const float value = (observations[at] - mean[i]) / std::sqrt(variance[i] + 1e-8f);
    normalized[at] = std::clamp(value, -10.0f, 10.0f);
  }
}

void Policy::ActGreedily(absl::Span<const float> observations, size_t batch, absl::Span<float> actions) {
  normalized_.resize(observations.size());
  Normalize(observations, absl::MakeSpan(normalized_));
  BestActions(normalized_.data(), batch, actions);
}

}  // namespace tandem::rl
