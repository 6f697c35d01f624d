// SPDX-License-Identifier: Apache-2.0
// The first update of PPO and of DQN with linear networks, against the formulas of their papers, which this
// file computes in double, without the code of worker/rl. The learners choose actions at random, so a test
// computes the update for each choice they may have made; exactly one must be what they did.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"
#include "worker/nn/gemm.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/learner/learner.h"
#include "worker/rl/learner/registry.h"

namespace tandem::rl {
namespace {

constexpr double kGoldenTolerance = 2e-6;
constexpr int kGoldenActions = 2;
constexpr size_t kChainStates = 5, kChainStart = 2;

using Numbers = std::vector<double>;

// A learner with linear networks and one copy of its environment. With so large an epsilon the first step of
// Adam depends on the size of the gradient, not only on its sign.
LearnerOptions Linear(const std::string& environment, const std::string& algorithm, uint64_t seed) {
  worker::UseOneBlasThread();
  LearnerOptions options;
  options.environment = Environments().Default(environment);
  options.algorithm = Algorithms().Default(algorithm);
  options.algorithm.lr = options.algorithm.lr_end = 0.1;
  options.algorithm.adam_epsilon = 1;
  options.algorithm.max_gradient_norm = 0;
  options.environments = 1;
  options.policy.hidden = {};
  options.env_steps = 1'000'000;
  options.seeds = {.environment = seed, .policy = seed};
  return options;
}

// Returns the values after the first step of Adam.
Numbers AdamStep(const Numbers& before, const Numbers& gradients, double lr) {
  Numbers after = before;
  for (size_t i = 0; i < after.size(); ++i) after[i] -= lr * gradients[i] / (std::abs(gradients[i]) + 1);
  return after;
}

bool Near(absl::Span<const float> got, const Numbers& wanted) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (std::abs(got[i] - wanted[i]) > kGoldenTolerance) return false;
  }
  return got.size() == wanted.size();
}

// The parameters [out x in] and [out] of a linear network whose inputs are one-hot, `offset` before them in
// the flat array.
struct OneHotLinear {
  size_t offset, in, out;
  size_t weight(size_t j, size_t state) const { return offset + j * in + state; }
  size_t bias(size_t j) const { return offset + in * out + j; }
  size_t size() const { return (in + 1) * out; }
  double Output(const Numbers& p, size_t j, size_t state) const { return p[weight(j, state)] + p[bias(j)]; }
  void AddGradient(size_t j, size_t state, double gradient, Numbers* gradients) const {
    (*gradients)[weight(j, state)] += gradient;
    (*gradients)[bias(j)] += gradient;
  }
};

// Sets the parameters of a learner to numbers that differ from each other, and returns them.
Numbers SetParameters(Learner* learner) {
  const absl::Span<float> values = learner->policy().parameters().values();
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(std::sin(1.7 * double(i) + 0.3));
  return {values.begin(), values.end()};
}

// A step that PPO has seen. `next_value` and `end` are as in Rollout.
struct Transition {
  size_t state, action;
  double reward, next_value;  // the discounted value of what follows
  bool end;
};

// Returns the parameters after an update of one epoch with one minibatch of all transitions, of one copy.
Numbers PpoUpdate(const AlgorithmOptions& o, const Numbers& before, size_t states,
                  const std::vector<Transition>& seen) {
  const OneHotLinear actor = {.offset = 0, .in = states, .out = kGoldenActions};
  const OneHotLinear critic = {.offset = actor.size(), .in = states, .out = 1};
  const double n = static_cast<double>(seen.size());
  Numbers advantages(seen.size());
  for (size_t i = seen.size(); i-- > 0;) {
    const Transition& t = seen[i];
    advantages[i] = t.reward + t.next_value - critic.Output(before, 0, t.state);
    if (!t.end && i + 1 < seen.size()) advantages[i] += o.gamma * o.lambda * advantages[i + 1];
  }
  double mean = 0, squares = 0;
  for (const double advantage : advantages) mean += advantage / n;
  for (const double advantage : advantages) squares += (advantage - mean) * (advantage - mean);
  const double deviation = std::sqrt(squares / (n - 1));
  Numbers gradients(before.size());
  for (size_t i = 0; i < seen.size(); ++i) {
    const Transition& t = seen[i];
    double exponentials[kGoldenActions], sum = 0, entropy = 0;
    for (size_t j = 0; j < kGoldenActions; ++j)
      sum += exponentials[j] = std::exp(actor.Output(before, j, t.state));
    for (const double e : exponentials) entropy -= e / sum * std::log(e / sum);
    const double advantage = n > 1 ? (advantages[i] - mean) / (deviation + 1e-8) : advantages[i];
    for (size_t j = 0; j < kGoldenActions; ++j) {
      const double p = exponentials[j] / sum;
      const double of_policy = -advantage * ((j == t.action ? 1 : 0) - p);
      const double of_entropy = o.entropy * p * (std::log(p) + entropy);
      actor.AddGradient(j, t.state, (of_policy + of_entropy) / n, &gradients);
    }
    critic.AddGradient(0, t.state, -o.value_coefficient * advantages[i] / n, &gradients);
  }
  double norm = 0;
  for (const double gradient : gradients) norm += gradient * gradient;
  norm = std::sqrt(norm);
  if (o.max_gradient_norm > 0 && norm > o.max_gradient_norm) {
    for (double& gradient : gradients) gradient *= o.max_gradient_norm / norm;
  }
  return AdamStep(before, gradients, o.lr);
}

LearnerOptions LinearPpo(const std::string& environment, int unroll, uint64_t seed) {
  LearnerOptions options = Linear(environment, "ppo", seed);
  options.algorithm.unroll = unroll;
  options.algorithm.epochs = options.algorithm.minibatches = 1;
  options.algorithm.entropy = 0.1;
  return options;
}

TEST(PpoGoldenTest, AnUpdateIsThatOfThePaper) {
  for (const double max_norm : {0.0, 0.1}) {
    LearnerOptions options = LinearPpo("bandit", 6, 1);
    options.environment.arms = kGoldenActions;
    options.algorithm.max_gradient_norm = max_norm;
    const std::unique_ptr<Learner> learner = *MakeLearner(options);
    const Numbers before = SetParameters(learner.get());
    TANDEM_ASSERT_OK(learner->Advance());
    std::vector<Transition> seen;
    std::set<size_t> actions;
    for (const Episode& episode : learner->TakeEpisodes()) {
      const auto action = static_cast<size_t>(episode.episode_return);  // arm i of two pays i
      actions.insert(action);
      seen.push_back({.state = 0, .action = action, .reward = double(action), .next_value = 0, .end = true});
    }
    ASSERT_EQ(seen.size(), 6u);
    ASSERT_EQ(actions.size(), 2u);
    const Numbers wanted = PpoUpdate(options.algorithm, before, 1, seen);
    EXPECT_TRUE(Near(learner->policy().parameters().values(), wanted)) << max_norm;
  }
}

// Both episodes are cut off after one step. What would have followed has the value of the state that the step
// led to, not 0, and not that of the state in which the next episode begins; and the second episode adds
// nothing to the first one's advantage.
TEST(PpoGoldenTest, ATruncatedEpisodeBootstrapsWithItsOwnLastState) {
  const OneHotLinear critic = {.offset = (kChainStates + 1) * kGoldenActions, .in = kChainStates, .out = 1};
  std::set<size_t> seen_pairs;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    LearnerOptions options = LinearPpo("chain", 2, seed);
    options.environment.max_steps = 1;
    const std::unique_ptr<Learner> learner = *MakeLearner(options);
    const Numbers before = SetParameters(learner.get());
    TANDEM_ASSERT_OK(learner->Advance());
    ASSERT_EQ(learner->TakeEpisodes().size(), 2u);
    const absl::Span<const float> after = learner->policy().parameters().values();
    int right = 0, without = 0, of_reset = 0;
    for (size_t pair = 0; pair < 4; ++pair) {
      std::vector<Transition> seen, zero, reset;
      for (const size_t action : {pair / 2, pair % 2}) {
        const auto transition = [&](double next_value) -> Transition {
          return {.state = kChainStart, .action = action, .reward = 0, .next_value = next_value, .end = true};
        };
        const size_t next = action == 1 ? kChainStart + 1 : kChainStart - 1;
        seen.push_back(transition(options.algorithm.gamma * critic.Output(before, 0, next)));
        reset.push_back(transition(options.algorithm.gamma * critic.Output(before, 0, kChainStart)));
        zero.push_back(transition(0));
      }
      const auto is = [&](const std::vector<Transition>& transitions) {
        return Near(after, PpoUpdate(options.algorithm, before, kChainStates, transitions)) ? 1 : 0;
      };
      if (is(seen) != 0) seen_pairs.insert(pair);
      right += is(seen);
      without += is(zero);
      of_reset += is(reset);
    }
    // Two orders of different actions give the same sums.
    EXPECT_THAT(right, ::testing::AnyOf(1, 2)) << seed;
    EXPECT_EQ(without, 0) << seed;
    EXPECT_EQ(of_reset, 0) << seed;
  }
  EXPECT_GE(seen_pairs.size(), 2u);
}

// Returns the parameters after an update of a transition of the chain.
Numbers DqnUpdate(const AlgorithmOptions& o, const Numbers& before, const Numbers& target, size_t state,
                  size_t action, const std::string& kind) {
  const OneHotLinear q = {.offset = 0, .in = kChainStates, .out = kGoldenActions};
  const bool left = state == 0 && action == 0, right = state + 1 == kChainStates && action == 1;
  double wanted = right ? 1 : 0;
  if (!left && !right) {
    const size_t next = action == 1 ? state + 1 : state - 1;
    const Numbers& chooser = kind == "double" ? before : target;
    const size_t best = q.Output(chooser, 1, next) > q.Output(chooser, 0, next) ? 1 : 0;
    wanted = o.gamma * q.Output(target, best, next);
  }
  const double error = q.Output(before, action, state) - wanted;
  Numbers gradients(before.size());
  q.AddGradient(action, state, std::clamp(error, -1.0, 1.0), &gradients);
  return AdamStep(before, gradients, o.lr);
}

TEST(DqnGoldenTest, AnUpdateIsThatOfThePapers) {
  for (const std::string kind : {"double", "plain"}) {
    const std::string other = kind == "double" ? "plain" : "double";
    std::set<std::pair<size_t, size_t>> seen;
    int told_apart = 0;
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      LearnerOptions options = Linear("chain", "dqn", seed);
      options.environment.max_steps = 0;
      AlgorithmOptions& o = options.algorithm;
      o.gamma = 0.9;
      o.n_step = 1;
      o.batch = 1;
      o.learning_starts = o.update_every = 32;
      o.epsilon_start = o.epsilon_end = 1;
      o.target = kind;
      const std::unique_ptr<Learner> learner = *MakeLearner(options);
      // The target network keeps its first parameters, so the two networks choose differently.
      const Numbers before = SetParameters(learner.get());
      const std::vector<float> first = learner->state().target;
      const Numbers target(first.begin(), first.end());
      while (learner->updates() == 0) TANDEM_ASSERT_OK(learner->Advance());
      ASSERT_EQ(learner->updates(), 1u);
      const absl::Span<const float> after = learner->policy().parameters().values();
      int matches = 0;
      for (size_t state = 0; state < kChainStates; ++state) {
        for (size_t action = 0; action < kGoldenActions; ++action) {
          if (!Near(after, DqnUpdate(o, before, target, state, action, kind))) continue;
          ++matches;
          seen.emplace(state, action);
          told_apart += Near(after, DqnUpdate(o, before, target, state, action, other)) ? 0 : 1;
        }
      }
      EXPECT_EQ(matches, 1) << kind << " " << seed;
    }
    EXPECT_GE(seen.size(), 4u);
    EXPECT_GE(told_apart, 1) << kind;
  }
}

}  // namespace
}  // namespace tandem::rl
