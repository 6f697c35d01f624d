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
  options.algorithm.staleness = "queue";
  options.algorithm.unroll = kUnroll;
  options.environments = 3;
  options.policy.hidden = {8};
  return options;
}

// An actor, a queue and an update that are not connected otherwise.
struct Parts {
  explicit Parts(const LearnerOptions& options, uint64_t queue = 64) : local(&store) {
    const EnvironmentSpec spec = (*MakeEnvironment(options.environment))->spec();
    TANDEM_EXPECT_OK(
        replay.CreateTable(IsPaced(options) ? UnrollTableOptions(options, spec) : UnrollQueue(spec, queue)));
    update = *ImpalaUpdate::Create(options, spec);
    actor = *UnrollActor::Create(ActorOptions(options, 0), &replay, &local);
    publisher = *weights::Publisher::Create(&local, {.model = kPolicyModel}, absl::InfiniteFuture());
  }
  void Publish() {
    TANDEM_EXPECT_OK(publisher->Publish(TensorsOf(update->policy()), {}, absl::InfiniteFuture()));
  }
  // Commits the newest version to a paced table.
  void Commit(uint64_t items_consumed) {
    const weights::ModelVersion version = publisher->version();
    TANDEM_EXPECT_OK(replay.Commit(kUnrollTable, {.epoch = version.epoch,
                                                  .version = static_cast<int64_t>(version.number),
                                                  .items_consumed = items_consumed}));
  }
  void Unroll() {
    TANDEM_EXPECT_OK(actor->Admit(absl::InfinitePast()));
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

// A table that admits two batches of three unrolls, one for each copy of the actor.
LearnerOptions PacedOptions() {
  LearnerOptions options = Options("cartpole", 10);
  options.algorithm.staleness = "pace";
  options.algorithm.batch = 3;
  options.algorithm.max_lag = 1;
  return options;
}

TEST(PacedActorTest, ItActsAtThePaceOfTheLearner) {
  Parts parts(PacedOptions());
  EXPECT_THAT(parts.actor->Admit(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("no version of the policy")));
  parts.Publish();
  parts.Commit(0);
  parts.Unroll();
  parts.Unroll();
  EXPECT_THAT(parts.actor->Admit(absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("admits no 3 rollouts")));
  EXPECT_EQ(parts.Sample(3).size(), 3u);
  parts.Publish();
  parts.Commit(3);
  parts.Unroll();
  const replay::Batch batch = parts.Sample(6);
  EXPECT_THAT(batch.min_versions, ::testing::ElementsAre(1, 1, 1, 2, 2, 2));
  TANDEM_ASSERT_OK(parts.update->ComputeGradients(batch, 2));
  EXPECT_EQ(parts.update->lag().greatest, 1u);
}

TEST(PacedActorTest, ItWaitsForTheWeightsThatItsTicketsRequire) {
  Parts parts(PacedOptions());
  parts.Publish();
  parts.Commit(0);
  parts.Unroll();
  EXPECT_EQ(parts.Sample(3).size(), 3u);
  TANDEM_ASSERT_OK(parts.replay.Commit(
      kUnrollTable, {.epoch = parts.publisher->version().epoch, .version = 2, .items_consumed = 3}));
  TANDEM_ASSERT_OK(parts.actor->Admit(absl::InfinitePast()));
  EXPECT_TRUE(parts.actor->behind());
  parts.Publish();
  EXPECT_TRUE(parts.actor->TakeWeights(absl::InfinitePast()).value());
  EXPECT_FALSE(parts.actor->behind());
  parts.Unroll();
  EXPECT_THAT(parts.Sample(3).min_versions, ::testing::ElementsAre(2, 2, 2));
}

TEST(PacedActorTest, WithFewerTicketsItsCopiesTakeTurns) {
  LearnerOptions options = PacedOptions();
  options.algorithm.batch = 2;
  options.algorithm.max_lag = 0;  // two tickets for three copies
  Parts parts(options);
  std::vector<replay::Batch> batches;
  for (uint64_t i = 0; i < 3; ++i) {
    parts.Publish();
    parts.Commit(2 * i);
    parts.Unroll();
    batches.push_back(parts.Sample(2));
  }
  EXPECT_EQ(parts.actor->env_steps(), 3u * 3 * kUnroll);
  // The items are of the copies 0 and 1, 2 and 0, 1 and 2. Copy 0 goes on with its episode.
  const auto next = batches[0].Find("next_observation")->values<float>(),
             seen = batches[1].Find("observation")->values<float>();
  EXPECT_EQ(next.subspan((kUnroll - 1) * 4, 4), seen.subspan(kUnroll * 4, 4));
  EXPECT_NE(next.subspan((kUnroll - 1) * 4, 4), seen.subspan(0, 4));
}

TEST(PacedActorTest, UnrollsWhoseTicketsHaveEndedAreLost) {
  Parts parts(PacedOptions());
  parts.Publish();
  parts.Commit(0);
  TANDEM_ASSERT_OK(parts.actor->Admit(absl::InfinitePast()));
  TANDEM_ASSERT_OK(parts.actor->TakeWeights(absl::InfinitePast()));
  (*parts.replay.Find(kUnrollTable))->Reset();
  TANDEM_ASSERT_OK(parts.actor->Act());
  TANDEM_EXPECT_OK(parts.actor->Deliver(absl::InfinitePast()));
  EXPECT_EQ(parts.replay.Info(kUnrollTable)->items, 0u);
  EXPECT_EQ(parts.replay.Info(kUnrollTable)->staleness.tickets.refused, 3u);
  parts.Publish();
  parts.Commit(0);
  parts.Unroll();
  EXPECT_EQ(parts.Sample(3).size(), 3u);
}

TEST(PacedActorTest, EachLearnerCountsInTheTableOfItsServer) {
  const LearnerOptions options = PacedOptions();
  const EnvironmentSpec spec = (*MakeEnvironment(options.environment))->spec();
  EXPECT_EQ(UnrollTableOptions(options, spec, 2).staleness.window(), 12u);
  // Five learners of two servers: 0, 2 and 4 take from the first one.
  EXPECT_EQ(LearnersOf(0, 2, 5), 3);
  EXPECT_EQ(LearnersOf(1, 2, 5), 2);
  EXPECT_EQ(LearnersOf(1, 2, 1), 0);
  LearnerOptions huge = options;
  huge.algorithm.max_lag = 1 << 30;
  EXPECT_LE(UnrollTableOptions(huge, spec).staleness.window(), uint64_t{1} << 20);
  TANDEM_EXPECT_OK(replay::CheckTableOptions(UnrollTableOptions(huge, spec)));
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
