// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/learner/impala_update.h"

#include <cmath>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/local_replay.h"
#include "tests/testing/status_matchers.h"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"
#include "worker/nn/gemm.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/kernels/vtrace.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int kUnroll = 6;

LearnerOptions Options(const std::string& environment, int max_steps) {
  worker::UseOneBlasThread();
  LearnerOptions options;
  options.environment = Environments().Default(environment);
  options.environment.max_steps = max_steps;
  options.algorithm = Algorithms().Default("impala");
  options.algorithm.unroll = kUnroll;
  options.environments = 3;
  options.policy.hidden = {8};
  return options;
}

// An actor, a queue and an update that are not connected otherwise.
struct Parts {
  explicit Parts(const LearnerOptions& options, uint64_t queue = 64) : local(&store) {
    const EnvironmentSpec spec = (*MakeEnvironment(options.environment))->spec();
    TANDEM_EXPECT_OK(replay.CreateTable(UnrollQueue(spec, queue)));
    update = *ImpalaUpdate::Create(options, spec);
    actor = *UnrollActor::Create(ActorOptions(options, 0), &replay, &local);
    publisher = *weights::Publisher::Create(&local, {.model = kPolicyModel}, absl::InfiniteFuture());
  }
  void Publish() {
    TANDEM_EXPECT_OK(publisher->Publish(TensorsOf(update->policy()), {}, absl::InfiniteFuture()));
  }
  void Unroll() {
    TANDEM_EXPECT_OK(actor->TakeWeights(absl::InfinitePast()));
    TANDEM_EXPECT_OK(actor->Act());
    TANDEM_EXPECT_OK(actor->Deliver(absl::InfinitePast()));
  }
  replay::Batch Sample(uint32_t batch) {
    return *replay.Sample(kUnrollTable, {.batch = batch}, absl::InfinitePast());
  }
  replay::LocalReplay replay;
  weights::ModelStore store;
  weights::LocalWeights local;
  std::unique_ptr<ImpalaUpdate> update;
  std::unique_ptr<UnrollActor> actor;
  std::unique_ptr<weights::Publisher> publisher;
};

TEST(UnrollActorTest, AnItemHasTheStepsOfOneCopy) {
  Parts parts(Options("cartpole", 4));
  parts.Publish();
  parts.Unroll();
  parts.Publish();
  parts.Unroll();
  EXPECT_EQ(parts.actor->env_steps(), 2u * 3 * kUnroll);
  const replay::Batch batch = parts.Sample(6);
  EXPECT_THAT(batch.min_versions, ::testing::ElementsAre(1, 1, 1, 2, 2, 2));
  EXPECT_EQ(batch.max_versions, batch.min_versions);
  const auto seen = batch.Find("observation")->values<float>(),
             next = batch.Find("next_observation")->values<float>(),
             actions = batch.Find("action")->values<float>();
  const auto terminated = batch.Find("terminated")->values<uint8_t>(),
             truncated = batch.Find("truncated")->values<uint8_t>();
  size_t ends = 0;
  for (size_t item = 0; item < 6; ++item) {
    for (size_t t = 0; t < kUnroll; ++t) {
      const size_t i = item * kUnroll + t;
      const bool end = terminated[i] != 0 || truncated[i] != 0;
      ends += end ? 1 : 0;
      EXPECT_TRUE(actions[i] == 0 || actions[i] == 1);
      // The item of the same copy in the next unroll continues this one.
      const bool last = t + 1 == kUnroll;
      const size_t following = last ? i + 2 * kUnroll + 1 : i + 1;
      if (following >= 6 * kUnroll) continue;
      const auto at = [](absl::Span<const float> rows, size_t row) { return rows.subspan(row * 4, 4); };
      EXPECT_EQ(at(next, i) == at(seen, following), !end) << item << " " << t;
    }
  }
  EXPECT_EQ(ends, 9u);  // a limit of 4 steps: three of each copy in 12 steps
  EXPECT_EQ(parts.actor->TakeEpisodes().size(), 9u);
}

TEST(UnrollActorTest, ItWaitsWhileTheQueueIsFullAndLosesNothing) {
  Parts parts(Options("chain", 10), /*queue=*/4);
  parts.Publish();
  parts.Unroll();
  TANDEM_ASSERT_OK(parts.actor->Act());
  EXPECT_THAT(parts.actor->Deliver(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("takes no inserts")));
  EXPECT_EQ(parts.Sample(4).size(), 4u);
  TANDEM_EXPECT_OK(parts.actor->Deliver(absl::InfinitePast()));
  EXPECT_EQ(parts.Sample(2).size(), 2u);
}

TEST(UnrollActorTest, AModelOfAnotherJobIsRefused) {
  Parts parts(Options("cartpole", 10)), other(Options("chain", 10));
  TANDEM_ASSERT_OK(parts.publisher->Publish(TensorsOf(other.update->policy()), {}, absl::InfiniteFuture()));
  EXPECT_THAT(parts.actor->TakeWeights(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("must run the same job")));
}

// The loss whose gradient an update computes, with targets and advantages as constants.
double Loss(ActorCritic& policy, const LearnerOptions& options, const std::vector<float>& observations,
            const std::vector<float>& actions, const std::vector<float>& targets,
            const std::vector<float>& advantages) {
  const size_t size = actions.size();
  policy.Forward(observations.data(), size);
  double loss = 0;
  for (size_t i = 0; i < size; ++i) {
    const auto now = policy.distribution().Evaluate(policy.head(i), policy.log_std(), {&actions[i], 1});
    const double error = policy.value(i) - targets[i];
    loss += -advantages[i] * now.log_probability - options.algorithm.entropy * now.entropy +
            0.5 * options.algorithm.value_coefficient * error * error;
  }
  return loss / static_cast<double>(size);
}

TEST(ImpalaUpdateTest, TheGradientIsThatOfTheLossWithConstantTargets) {
  LearnerOptions options = Options("chain", 4);  // some episodes end by the limit, some by themselves
  Parts parts(options);
  parts.Publish();
  // The learner is ahead of the actor: the ratios differ from 1.
  for (float& value : parts.update->policy().parameters().values()) value += 0.1f;
  for (int i = 0; i < 3; ++i) parts.Unroll();
  const size_t unrolls = 8, size = unrolls * kUnroll;
  const replay::Batch batch = parts.Sample(unrolls);
  TANDEM_ASSERT_OK(parts.update->ComputeGradients(batch, 1));
  ActorCritic& policy = parts.update->policy();
  const std::vector<float> got(policy.parameters().gradients().begin(),
                               policy.parameters().gradients().end());

  // The targets, item by item instead of time by time.
  const auto floats = [&](const char* name) {
    const auto values = batch.Find(name)->values<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> observations = floats("observation"), next = floats("next_observation"),
                           actions = floats("action"), behaviour = floats("log_probability"),
                           rewards = floats("reward");
  const auto terminated = batch.Find("terminated")->values<uint8_t>(),
             truncated = batch.Find("truncated")->values<uint8_t>();
  std::vector<float> values(size), next_values(size), ratios(size), discounts(size), targets(size),
      advantages(size);
  std::vector<uint8_t> ends(size);
  policy.Values(observations.data(), size, absl::MakeSpan(values));
  policy.Values(next.data(), size, absl::MakeSpan(next_values));
  policy.Forward(observations.data(), size);
  size_t terminations = 0, truncations = 0;
  for (size_t i = 0; i < size; ++i) {
    const auto now = policy.distribution().Evaluate(policy.head(i), policy.log_std(), {&actions[i], 1});
    ratios[i] = static_cast<float>(std::exp(now.log_probability - behaviour[i]));
    discounts[i] = terminated[i] != 0 ? 0.0f : 0.99f;
    ends[i] = terminated[i] | truncated[i];
    terminations += terminated[i];
    truncations += truncated[i] != 0 && terminated[i] == 0 ? 1 : 0;
  }
  ASSERT_GT(terminations, 0u);
  ASSERT_GT(truncations, 0u);
  for (size_t u = 0; u < unrolls; ++u) {
    const auto part = [u](auto& all) { return absl::MakeSpan(all).subspan(u * kUnroll, kUnroll); };
    VTrace({.steps = kUnroll,
            .streams = 1,
            .rewards = absl::MakeConstSpan(rewards).subspan(u * kUnroll, kUnroll),
            .discounts = part(discounts),
            .values = part(values),
            .next_values = part(next_values),
            .ends = part(ends)},
           part(ratios), {}, part(targets), part(advantages));
  }
  for (size_t i = 0; i < size; ++i) targets[i] += values[i];
  const absl::Span<float> parameters = policy.parameters().values();
  for (size_t p = 0; p < parameters.size(); p += 3) {
    constexpr float kStep = 1e-2f;
    const float before = parameters[p];
    parameters[p] = before + kStep;
    const double above = Loss(policy, options, observations, actions, targets, advantages);
    parameters[p] = before - kStep;
    const double below = Loss(policy, options, observations, actions, targets, advantages);
    parameters[p] = before;
    EXPECT_NEAR(got[p], (above - below) / (2.0 * kStep), 2e-4) << "parameter " << p;
  }
}

TEST(ImpalaUpdateTest, UnrollsThatLagTooFarCountAsZeros) {
  LearnerOptions options = Options("chain", 4);
  options.algorithm.max_lag = 2;
  Parts parts(options);
  for (int i = 0; i < 4; ++i) {
    parts.Publish();
    if (i == 0 || i == 3) parts.Unroll();  // of the versions 1 and 4
  }
  const replay::Batch batch = parts.Sample(6);
  TANDEM_ASSERT_OK(parts.update->ComputeGradients(batch, 4));
  EXPECT_EQ(parts.update->lag().dropped, 3u);
  EXPECT_EQ(parts.update->lag().unrolls, 6u);
  EXPECT_EQ(parts.update->lag().greatest, 0u);
  const absl::Span<float> gradients = parts.update->policy().parameters().gradients();
  const std::vector<float> half(gradients.begin(), gradients.end());

  // Without the old ones the mean is over half as many.
  Parts again(options);
  again.Publish();
  again.Unroll();
  again.Sample(3);
  again.Unroll();
  TANDEM_ASSERT_OK(again.update->ComputeGradients(again.Sample(3), 1));
  const absl::Span<float> whole = again.update->policy().parameters().gradients();
  for (size_t p = 0; p < half.size(); ++p) EXPECT_NEAR(2 * half[p], whole[p], 1e-6);

  TANDEM_ASSERT_OK(again.actor->TakeWeights(absl::InfinitePast()));
  again.Unroll();
  TANDEM_ASSERT_OK(again.update->ComputeGradients(again.Sample(3), 9));
  EXPECT_FALSE(again.update->has_gradients());
  for (const float value : again.update->policy().parameters().gradients()) EXPECT_EQ(value, 0);
}

TEST(ImpalaUpdateTest, ABatchOfAnotherJobIsNamed) {
  Parts chain(Options("chain", 4)), cartpole(Options("cartpole", 4));
  chain.Publish();
  chain.Unroll();
  EXPECT_THAT(cartpole.update->ComputeGradients(chain.Sample(2), 1),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("observation")));
}

}  // namespace
}  // namespace tandem::rl
