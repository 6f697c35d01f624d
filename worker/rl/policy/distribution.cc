// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/policy/distribution.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tandem::rl {
namespace {

// The logarithm of the sum of the exponentials of the logits.
double LogSum(absl::Span<const float> logits) {
  const double greatest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - greatest);
  return greatest + std::log(sum);
}

double LogDensity(double mean, double log_std, double action) {
  const double z = (action - mean) * std::exp(-log_std);
  return -0.5 * z * z - log_std - 0.5 * std::log(2 * std::numbers::pi);
}

}  // namespace

double ActionDistribution::Sample(absl::Span<const float> head, absl::Span<const float> log_std,
                                  CounterRandom& random, absl::Span<float> action) const {
  double log_probability = 0;
  if (space_.discrete()) {
    const double log_sum = LogSum(head);
    double left = random.UniformDouble();
    size_t chosen = 0;
    for (; chosen + 1 < head.size(); ++chosen) {
      left -= std::exp(head[chosen] - log_sum);
      if (left < 0) break;
    }
    action[0] = static_cast<float>(chosen);
    return head[chosen] - log_sum;
  }
  for (size_t i = 0; i < head.size(); ++i) {
    action[i] = static_cast<float>(head[i] + std::exp(static_cast<double>(log_std[i])) * random.Normal());
    log_probability += LogDensity(head[i], log_std[i], action[i]);
  }
  return log_probability;
}

void ActionDistribution::Mode(absl::Span<const float> head, absl::Span<float> action) const {
  if (!space_.discrete()) {
    std::copy(head.begin(), head.end(), action.begin());
    return;
  }
  action[0] = static_cast<float>(std::max_element(head.begin(), head.end()) - head.begin());
}

ActionDistribution::Values ActionDistribution::Evaluate(absl::Span<const float> head,
                                                        absl::Span<const float> log_std,
                                                        absl::Span<const float> action) const {
  Values values;
  if (space_.discrete()) {
    const double log_sum = LogSum(head);
    for (const float logit : head) values.entropy -= std::exp(logit - log_sum) * (logit - log_sum);
    values.log_probability = head[static_cast<size_t>(action[0])] - log_sum;
    return values;
  }
  for (size_t i = 0; i < head.size(); ++i) {
    values.log_probability += LogDensity(head[i], log_std[i], action[i]);
    values.entropy += log_std[i] + 0.5 * std::log(2 * std::numbers::pi * std::numbers::e);
  }
  return values;
}

void ActionDistribution::Backward(absl::Span<const float> head, absl::Span<const float> log_std,
                                  absl::Span<const float> action, double d_log_probability, double d_entropy,
                                  absl::Span<float> d_head, absl::Span<float> d_log_std) const {
  if (space_.discrete()) {
    const double log_sum = LogSum(head);
    double entropy = 0;
    for (const float logit : head) entropy -= std::exp(logit - log_sum) * (logit - log_sum);
    const auto chosen = static_cast<size_t>(action[0]);
    for (size_t i = 0; i < head.size(); ++i) {
      const double log_probability = head[i] - log_sum, probability = std::exp(log_probability);
      d_head[i] = static_cast<float>(d_log_probability * ((i == chosen ? 1.0 : 0.0) - probability) -
                                     d_entropy * probability * (log_probability + entropy));
    }
    return;
  }
  for (size_t i = 0; i < head.size(); ++i) {
    const double inverse = std::exp(-static_cast<double>(log_std[i]));
    const double z = (action[i] - head[i]) * inverse;
    d_head[i] = static_cast<float>(d_log_probability * z * inverse);
    d_log_std[i] += static_cast<float>(d_log_probability * (z * z - 1) + d_entropy);
  }
}

void ActionDistribution::ToEnvironment(absl::Span<const float> action, absl::Span<float> scaled) const {
  if (space_.discrete()) {
    scaled[0] = action[0];
    return;
  }
  const double middle = 0.5 * (space_.low + space_.high), half = 0.5 * (space_.high - space_.low);
  for (size_t i = 0; i < action.size(); ++i)
    scaled[i] = static_cast<float>(std::clamp(middle + half * action[i], space_.low, space_.high));
}

}  // namespace tandem::rl
