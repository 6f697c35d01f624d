// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/policy/policy.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/rl/policy/actor_critic.h"
#include "worker/rl/policy/distribution.h"
#include "worker/rl/policy/q_network.h"

namespace tandem::rl {
namespace {

const ActionSpace kChoices = {.choices = 3};
const ActionSpace kReal = {.dimensions = 2, .low = -2, .high = 6};

TEST(ActionDistributionTest, GradientsEqualFiniteDifferences) {
  CounterRandom random(1, 1);
  for (const ActionSpace& space : {kChoices, kReal}) {
    const ActionDistribution distribution(space);
    std::vector<float> head(distribution.head_size()), log_std(distribution.log_std_size()),
        action(distribution.action_size());
    for (float& value : head) value = static_cast<float>(random.Normal());
    for (float& value : log_std) value = static_cast<float>(0.3 * random.Normal());
    distribution.Sample(head, log_std, random, absl::MakeSpan(action));
    constexpr double kLogProbability = 0.7, kEntropy = -1.3, kStep = 1e-3;
    const auto loss = [&] {
      const ActionDistribution::Values values = distribution.Evaluate(head, log_std, action);
      return kLogProbability * values.log_probability + kEntropy * values.entropy;
    };
    std::vector<float> d_head(head.size()), d_log_std(log_std.size());
    distribution.Backward(head, log_std, action, kLogProbability, kEntropy, absl::MakeSpan(d_head),
                          absl::MakeSpan(d_log_std));
    const auto check = [&](std::vector<float>& values, const std::vector<float>& gradients) {
      for (size_t i = 0; i < values.size(); ++i) {
        const float before = values[i];
        values[i] = before + static_cast<float>(kStep);
        const double above = loss();
        values[i] = before - static_cast<float>(kStep);
        const double below = loss();
        values[i] = before;
        EXPECT_NEAR(gradients[i], (above - below) / (2 * kStep), 2e-3);
      }
    };
    check(head, d_head);
    check(log_std, d_log_std);
  }
}

TEST(ActionDistributionTest, SamplesHaveTheProbabilitiesOfTheSoftmax) {
  const ActionDistribution distribution(kChoices);
  const std::vector<float> head = {0.0f, 1.0f, -1.0f};
  constexpr int kDraws = 20000;
  std::vector<double> counts(3);
  CounterRandom random(2, 2);
  for (int i = 0; i < kDraws; ++i) {
    float action = 0;
    const double log_probability = distribution.Sample(head, {}, random, {&action, 1});
    counts[static_cast<size_t>(action)] += 1;
    EXPECT_DOUBLE_EQ(log_probability, distribution.Evaluate(head, {}, {&action, 1}).log_probability);
  }
  const double sum = 1 + std::exp(1.0) + std::exp(-1.0);
  double chi_square = 0;
  for (size_t i = 0; i < 3; ++i) {
    const double expected = kDraws * std::exp(static_cast<double>(head[i])) / sum;
    chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
  }
  EXPECT_LT(chi_square, 13.8);  // the 0.999 quantile of two degrees of freedom
}

TEST(ActionDistributionTest, SamplesOfAGaussianHaveItsMeanAndDeviation) {
  const ActionDistribution distribution({.dimensions = 1, .low = -1, .high = 1});
  const float mean = 0.5f, log_std = -0.7f;
  CounterRandom random(3, 3);
  double sum = 0, squares = 0;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    float action = 0;
    distribution.Sample({&mean, 1}, {&log_std, 1}, random, {&action, 1});
    sum += action;
    squares += (action - mean) * (action - mean);
  }
  const double deviation = std::exp(static_cast<double>(log_std));
  EXPECT_NEAR(sum / kDraws, mean, 4 * deviation / std::sqrt(kDraws));
  EXPECT_NEAR(std::sqrt(squares / kDraws), deviation, 0.02);
}

TEST(ActionDistributionTest, RealActionsAreScaledToTheRangeAndClipped) {
  const ActionDistribution distribution(kReal);
  std::vector<float> scaled(2);
  distribution.ToEnvironment({0.5f, -3.0f}, absl::MakeSpan(scaled));
  EXPECT_THAT(scaled, ::testing::ElementsAre(4.0f, -2.0f));
}

TEST(ActorCriticTest, TheFirstPolicyIsNearlyUniform) {
  ActorCritic policy({.observation_size = 4, .actions = kChoices}, {}, 1);
  std::vector<float> observations(40);
  CounterRandom random(4, 4);
  for (float& value : observations) value = static_cast<float>(random.Normal());
  policy.Forward(observations.data(), 10);
  for (size_t row = 0; row < 10; ++row) {
    const float action = 1;
    const auto values = policy.distribution().Evaluate(policy.head(row), policy.log_std(), {&action, 1});
    EXPECT_NEAR(values.entropy, std::log(3.0), 0.01);
  }
}

// The loss of a policy-gradient step on a bandit with one observation, in closed form: the gradient of the
// expected reward with respect to the logits is p_i * (reward_i - mean reward).
TEST(ActorCriticTest, TheExpectedGradientOnABanditIsThatOfTheClosedForm) {
  const ActionDistribution distribution({.choices = 4});
  const std::vector<float> head = {0.1f, -0.4f, 0.9f, 0.0f};
  double sum = 0, mean = 0;
  std::vector<double> probabilities;
  for (const float logit : head) sum += std::exp(static_cast<double>(logit));
  for (size_t i = 0; i < head.size(); ++i) {
    probabilities.push_back(std::exp(static_cast<double>(head[i])) / sum);
    mean += probabilities[i] * static_cast<double>(i) / 3;
  }
  std::vector<double> expected(4);
  for (size_t arm = 0; arm < 4; ++arm) {
    std::vector<float> d_head(4);
    const float action = static_cast<float>(arm);
    distribution.Backward(head, {}, {&action, 1}, static_cast<double>(arm) / 3, 0, absl::MakeSpan(d_head),
                          {});
    for (size_t i = 0; i < 4; ++i) expected[i] += probabilities[arm] * d_head[i];
  }
  for (size_t i = 0; i < 4; ++i)
    EXPECT_NEAR(expected[i], probabilities[i] * (static_cast<double>(i) / 3 - mean), 1e-6);
}

TEST(ActorCriticTest, GradientsOfAllParametersEqualFiniteDifferences) {
  for (const ActionSpace& space : {kChoices, kReal}) {
    ActorCritic policy({.observation_size = 3, .actions = space}, {.hidden = {5, 4}}, 1);
    constexpr size_t kBatch = 6;
    CounterRandom random(5, 5);
    for (float& value : policy.parameters().values()) value += static_cast<float>(0.3 * random.Normal());
    std::vector<float> observations(kBatch * 3);
    for (float& value : observations) value = static_cast<float>(random.Normal());
    const size_t width = policy.distribution().action_size();
    std::vector<float> actions(kBatch * width), log_probabilities(kBatch), values(kBatch);
    policy.Act(observations.data(), kBatch, random, absl::MakeSpan(actions),
               absl::MakeSpan(log_probabilities), absl::MakeSpan(values));
    const auto loss = [&] {
      policy.Forward(observations.data(), kBatch);
      double sum = 0;
      for (size_t row = 0; row < kBatch; ++row) {
        const auto now = policy.distribution().Evaluate(
            policy.head(row), policy.log_std(), absl::MakeConstSpan(actions).subspan(row * width, width));
        sum += now.log_probability + 0.5 * now.entropy + 0.5 * policy.value(row) * policy.value(row);
      }
      return sum;
    };
    policy.Forward(observations.data(), kBatch);
    for (float& value : policy.d_log_std()) value = 0;
    for (size_t row = 0; row < kBatch; ++row) {
      policy.distribution().Backward(policy.head(row), policy.log_std(),
                                     absl::MakeConstSpan(actions).subspan(row * width, width), 1, 0.5,
                                     policy.d_head(row), policy.d_log_std());
      policy.d_value(row) = policy.value(row);
    }
    policy.Backward(observations.data(), kBatch);
    const std::vector<float> gradients(policy.parameters().gradients().begin(),
                                       policy.parameters().gradients().end());
    for (size_t i = 0; i < gradients.size(); ++i) {
      float& parameter = policy.parameters().values()[i];
      const float before = parameter;
      constexpr float kStep = 2e-3f;
      parameter = before + kStep;
      const double above = loss();
      parameter = before - kStep;
      const double below = loss();
      parameter = before;
      EXPECT_NEAR(gradients[i], (above - below) / (2.0 * kStep), 2e-2 * (1 + std::abs(gradients[i]))) << i;
    }
  }
}

TEST(QNetworkTest, GradientsOfAllParametersEqualFiniteDifferences) {
  QNetwork network({.observation_size = 3, .actions = kChoices}, {.hidden = {6}}, 2);
  CounterRandom random(6, 6);
  for (float& value : network.parameters().values()) value += static_cast<float>(0.3 * random.Normal());
  std::vector<float> observations(12);
  for (float& value : observations) value = static_cast<float>(random.Normal());
  const auto loss = [&] {
    double sum = 0;
    for (const float value : network.Forward(observations.data(), 4)) sum += 0.5 * value * value;
    return sum;
  };
  const absl::Span<const float> values = network.Forward(observations.data(), 4);
  const std::vector<float> d_values(values.begin(), values.end());
  network.Backward(observations.data(), 4, d_values.data());
  const std::vector<float> gradients(network.parameters().gradients().begin(),
                                     network.parameters().gradients().end());
  for (size_t i = 0; i < gradients.size(); ++i) {
    float& parameter = network.parameters().values()[i];
    const float before = parameter;
    constexpr float kStep = 2e-3f;
    parameter = before + kStep;
    const double above = loss();
    parameter = before - kStep;
    const double below = loss();
    parameter = before;
    EXPECT_NEAR(gradients[i], (above - below) / (2.0 * kStep), 1e-2 * (1 + std::abs(gradients[i]))) << i;
  }
}

TEST(PolicyTest, ObservationsAreNormalizedByTheirMeanAndDeviation) {
  QNetwork network({.observation_size = 2, .actions = kChoices}, {.normalize_observations = true}, 1);
  CounterRandom random(7, 7);
  double sum = 0, squares = 0;
  constexpr int kBatches = 50, kBatch = 20;
  std::vector<float> all;
  for (int b = 0; b < kBatches; ++b) {
    std::vector<float> batch;
    for (int i = 0; i < kBatch; ++i) {
      batch.push_back(static_cast<float>(100 + 5 * random.Normal()));
      batch.push_back(-1.0f);
    }
    network.CountObservations(batch);
    for (size_t i = 0; i < batch.size(); i += 2) all.push_back(batch[i]);
  }
  for (const float value : all) sum += value;
  const double mean = sum / static_cast<double>(all.size());
  for (const float value : all) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(all.size()));
  std::vector<float> normalized(2);
  // The first number after one deviation; the second one never changes.
  network.Normalize({static_cast<float>(mean + deviation), -1.0f}, absl::MakeSpan(normalized));
  EXPECT_NEAR(normalized[0], 1.0f, 0.02);
  EXPECT_NEAR(normalized[1], 0.0f, 0.02);
  network.Normalize({1e9f, -1.0f}, absl::MakeSpan(normalized));
  EXPECT_EQ(normalized[0], 10.0f);
}

TEST(PolicyTest, WithoutNormalizationObservationsStayAsTheyAre) {
  QNetwork network({.observation_size = 2, .actions = kChoices}, {}, 1);
  network.CountObservations({1, 2, 3, 4});
  std::vector<float> normalized(2);
  network.Normalize({1234.5f, -7.0f}, absl::MakeSpan(normalized));
  EXPECT_THAT(normalized, ::testing::ElementsAre(1234.5f, -7.0f));
}

}  // namespace
}  // namespace tandem::rl
