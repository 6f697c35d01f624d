// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/inference/inference_server.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/local_replay.h"
#include "rpc/transport/loopback.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/testing/status_matchers.h"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"
#include "worker/nn/gemm.h"
#include "worker/rl/actor/unroll_actor.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/inference/remote_policy.h"
#include "worker/rl/policy/policy_weights.h"

namespace tandem::rl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

constexpr size_t kObservation = 4;

absl::Time InAMinute() { return MonotonicNow() + absl::Minutes(1); }

// An inference server for CartPole with a weight store.
struct Served {
  explicit Served(const InferenceServerOptions& with = {}) : options(with), local(&store) {
    worker::UseOneBlasThread();
    environment = (*MakeEnvironment(Environments().Default("cartpole")))->spec();
    policy = std::make_unique<ActorCritic>(environment, options.policy, 7);
    publisher = *weights::Publisher::Create(&local, {.model = kPolicyModel}, InAMinute());
    server = std::make_unique<InferenceServer>(options, environment, &local);
  }
  // Publishes a policy whose choices depend clearly on the observation.
  void Publish(float change, bool last = false) {
    CounterRandom random(3, 4);
    for (float& value : policy->parameters().values())
      value = change + 0.5f * static_cast<float>(random.Normal());
    TANDEM_EXPECT_OK(publisher->Publish(TensorsOf(*policy), {.last = last}, InAMinute()));
  }
  std::shared_ptr<rpc::Channel> Connect() {
    return rpc::ConnectLoopback(
        std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{server->service()}));
  }
  InferenceServerOptions options;
  EnvironmentSpec environment;
  std::unique_ptr<ActorCritic> policy;  // with the weights of the last Publish
  weights::ModelStore store;
  weights::LocalWeights local;
  std::unique_ptr<weights::Publisher> publisher;
  std::unique_ptr<InferenceServer> server;
};

std::vector<float> Observations(uint64_t seed, size_t rows) {
  CounterRandom random(seed, 1);
  std::vector<float> observations(rows * kObservation);
  for (float& value : observations) value = static_cast<float>(random.Normal());
  return observations;
}

TEST(InferenceServerTest, ManyActorsGetTheActionsOfTheirOwnObservations) {
  Served served;
  served.Publish(0.0f);
  constexpr int kActors = 6, kCalls = 50;
  std::vector<std::vector<float>> seen(kActors), actions(kActors), log_probabilities(kActors);
  std::vector<std::thread> threads;
  for (int a = 0; a < kActors; ++a) {
    threads.emplace_back([&, a] {
      RemotePolicy remote(served.Connect());
      const size_t rows = 1 + static_cast<size_t>(a);
      for (uint64_t call = 0; call < kCalls; ++call) {
        const std::vector<float> observations = Observations(call * 100 + static_cast<uint64_t>(a), rows);
        std::vector<float> chosen(rows), logs(rows);
        const auto with =
            remote.Act(observations, rows, absl::MakeSpan(chosen), absl::MakeSpan(logs), InAMinute());
        TANDEM_ASSERT_OK(with);
        EXPECT_EQ(with->version, served.publisher->version());
        EXPECT_FALSE(with->last);
        seen[a].insert(seen[a].end(), observations.begin(), observations.end());
        actions[a].insert(actions[a].end(), chosen.begin(), chosen.end());
        log_probabilities[a].insert(log_probabilities[a].end(), logs.begin(), logs.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  size_t rows = 0;
  for (int a = 0; a < kActors; ++a) {
    rows += actions[a].size();
    served.policy->Forward(seen[a].data(), actions[a].size());
    for (size_t i = 0; i < actions[a].size(); ++i) {
      const double wanted =
          served.policy->distribution()
              .Evaluate(served.policy->head(i), served.policy->log_std(), {&actions[a][i], 1})
              .log_probability;
      EXPECT_NEAR(log_probabilities[a][i], wanted, 1e-4);
    }
  }
  const v1::InferenceStatistics statistics = served.server->Statistics();
  EXPECT_EQ(statistics.calls(), static_cast<uint64_t>(kActors * kCalls));
  EXPECT_EQ(statistics.rows(), rows);
  EXPECT_LE(statistics.batches(), statistics.calls());
  EXPECT_EQ(statistics.waiting_calls(), 0u);
}

TEST(InferenceServerTest, CallsWaitForTheFirstWeightsAndFollowTheNewest) {
  Served served;
  RemotePolicy remote(served.Connect());
  const std::vector<float> observations = Observations(1, 2);
  std::vector<float> actions(2), logs(2);
  const auto act = [&](absl::Time deadline) {
    return remote.Act(observations, 2, absl::MakeSpan(actions), absl::MakeSpan(logs), deadline);
  };
  EXPECT_THAT(act(MonotonicNow() + absl::Milliseconds(30)), StatusIs(absl::StatusCode::kDeadlineExceeded));
  std::thread waiting([&] {
    const auto with = act(InAMinute());
    TANDEM_ASSERT_OK(with);
    EXPECT_EQ(with->version.number, 1u);
  });
  served.Publish(0.0f);
  waiting.join();
  served.Publish(0.1f, /*last=*/true);
  for (;;) {  // the server follows the weights on a thread of its own
    const auto with = act(InAMinute());
    TANDEM_ASSERT_OK(with);
    if (with->version.number == 1) continue;
    EXPECT_EQ(with->version, served.publisher->version());
    EXPECT_TRUE(with->last);
    break;
  }
}

// A call of Act for one observation whose caller can give up.
class ActCall : public rpc::ServerCall {
 public:
  explicit ActCall(const std::vector<float>& observation) {
    v1::InferenceActRequest request;
    request.set_rows(1);
    request_ = rpc::EncodeBulk(request, Bytes(std::string(reinterpret_cast<const char*>(observation.data()),
                                                          observation.size() * sizeof(float))));
  }
  const Bytes& request() const override { return request_; }
  const std::string& peer() const override { return peer_; }
  absl::Time deadline() const override { return absl::InfiniteFuture(); }
  bool IsCancelled() const override { return gone_; }
  void Finish(absl::StatusOr<Bytes> response) override {
    status_ = response.status();
    finished_.Notify();
  }
  void GiveUp() { gone_ = true; }
  bool finished() const { return finished_.HasBeenNotified(); }
  // Blocks until the server has answered.
  absl::Status Answer() {
    if (!finished_.WaitForNotificationWithTimeout(absl::Minutes(1)))
      return absl::DeadlineExceededError("the server has not answered within a minute");
    return status_;
  }

 private:
  Bytes request_;
  const std::string peer_ = "test";
  std::atomic<bool> gone_{false};
  absl::Status status_;
  absl::Notification finished_;
};

TEST(InferenceServerTest, CallsWithoutCallerTakeNoPlaceBeforeTheFirstWeights) {
  Served served({.max_waiting = 1});
  const rpc::Method act = served.server->service().methods[0];
  const auto call = [&] {
    auto one = std::make_shared<ActCall>(Observations(1, 1));
    act.handler(one);
    return one;
  };
  const std::shared_ptr<ActCall> first = call();
  EXPECT_FALSE(first->finished());
  EXPECT_THAT(call()->Answer(), StatusIs(absl::StatusCode::kResourceExhausted));
  first->GiveUp();
  const std::shared_ptr<ActCall> second = call();
  EXPECT_THAT(first->Answer(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_EQ(served.server->Statistics().waiting_calls(), 1u);
  EXPECT_EQ(served.server->Statistics().dropped_calls(), 1u);
  served.Publish(0.0f);
  TANDEM_EXPECT_OK(second->Answer());
}

TEST(InferenceServerTest, RefusesWhatAreNoObservations) {
  Served served;
  served.Publish(0.0f);
  const std::shared_ptr<rpc::Channel> channel = served.Connect();
  const auto act = [&](uint32_t rows, const std::vector<float>& numbers) {
    v1::InferenceActRequest request;
    request.set_rows(rows);
    const std::string payload(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float));
    return channel
        ->Call("/tandem.v1.Inference/Act", rpc::EncodeBulk(request, Bytes(std::string(payload))), {})
        .status();
  };
  constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(act(0, {}), StatusIs(kInvalidArgument, HasSubstr("0 observations")));
  EXPECT_THAT(act(2, Observations(1, 1)), StatusIs(kInvalidArgument, HasSubstr("each of 4 float32 numbers")));
  EXPECT_THAT(act(1u << 20, Observations(1, 1)),
              StatusIs(kInvalidArgument, HasSubstr("there must be 1 to 65536")));
  EXPECT_THAT(act(1, {1, 2, NAN, 4}), StatusIs(kInvalidArgument, HasSubstr("is not finite")));
  TANDEM_EXPECT_OK(act(1, Observations(1, 1)));
}

// Publishes tensors of other shapes or other numbers than a policy of this job has.
void PublishBad(Served& served, const std::string& how) {
  std::vector<weights::NamedTensor> tensors = TensorsOf(*served.policy);
  std::vector<float> values(tensors[0].values.begin(), tensors[0].values.end());
  if (how == "other shape") tensors[0].shape = {tensors[0].values.size()};
  if (how == "missing tensor") tensors.pop_back();
  if (how == "nan") values[0] = NAN;
  if (how == "infinity") values.back() = INFINITY;
  tensors[0].values = values;
  TANDEM_EXPECT_OK(served.publisher->Publish(tensors, {}, InAMinute()));
}

// One bad version made the server answer errors for ever.
TEST(InferenceServerTest, ABadVersionIsSkippedAndTheNextGoodOneActs) {
  for (const std::string how : {"other shape", "missing tensor", "nan", "infinity"}) {
    SCOPED_TRACE(how);
    Served served;
    RemotePolicy remote(served.Connect());
    const std::vector<float> observations = Observations(1, 2);
    std::vector<float> actions(2), logs(2);
    const auto act = [&] {
      return remote.Act(observations, 2, absl::MakeSpan(actions), absl::MakeSpan(logs), InAMinute());
    };
    const auto act_until = [&](uint64_t version) {
      for (;;) {  // the server follows the weights on a thread of its own
        const auto with = act();
        TANDEM_ASSERT_OK(with);
        ASSERT_LE(with->version.number, version);
        if (with->version.number == version) return;
      }
    };
    served.Publish(0.0f);
    act_until(1);
    PublishBad(served, how);
    // The version before acts on, whether the server has seen the new one yet or not.
    for (int i = 0; i < 50; ++i) {
      const auto with = act();
      TANDEM_ASSERT_OK(with);
      EXPECT_EQ(with->version.number, 1u);
      EXPECT_TRUE(std::isfinite(logs[0]));
    }
    served.Publish(0.1f);
    act_until(3);
    PublishBad(served, how);
    PublishBad(served, how);
    served.Publish(0.2f);
    act_until(6);
  }
}

TEST(InferenceServerTest, CallsFailWhileThereIsNoVersionThatCanAct) {
  Served served;
  PublishBad(served, "other shape");
  RemotePolicy remote(served.Connect());
  const std::vector<float> observations = Observations(1, 1);
  std::vector<float> action(1), log(1);
  const auto act = [&] {
    return remote.Act(observations, 1, absl::MakeSpan(action), absl::MakeSpan(log), InAMinute());
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(act().status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         ::testing::AllOf(HasSubstr("skips version 1 of 'policy'"),
                                          HasSubstr("learners and actors must run the same job"))));
  }
  served.Publish(0.0f);
  const absl::Time deadline = InAMinute();
  while (!act().ok() && MonotonicNow() < deadline) std::this_thread::yield();
  const auto with = act();
  TANDEM_ASSERT_OK(with);
  EXPECT_EQ(with->version.number, 2u);
}

TEST(InferenceServerTest, AStoppedServerEndsCalls) {
  Served served;  // no weights: the call waits
  const std::shared_ptr<rpc::Channel> channel = served.Connect();
  std::thread waiting([&] {
    RemotePolicy remote(channel);
    std::vector<float> action(1), log(1);
    EXPECT_THAT(
        remote.Act(Observations(1, 1), 1, absl::MakeSpan(action), absl::MakeSpan(log), InAMinute()).status(),
        StatusIs(absl::StatusCode::kCancelled));
  });
  const absl::Time deadline = InAMinute();
  while (served.server->Statistics().waiting_calls() == 0 && MonotonicNow() < deadline)
    std::this_thread::yield();
  served.server->Stop();
  waiting.join();
}

TEST(InferenceServerTest, APacedActorWaitsForWeightsThatItsTicketsRequire) {
  Served served;
  served.Publish(0.0f);
  RemotePolicy remote(served.Connect());
  replay::LocalReplay replay;
  replay::TableOptions table = UnrollQueue(served.environment, 2);
  table.staleness = {.kind = replay::StalenessKind::kPace, .max_lag = 0, .batch = 2};
  TANDEM_ASSERT_OK(replay.CreateTable(table));
  TANDEM_ASSERT_OK(replay.Commit(kUnrollTable, {.epoch = 1, .version = 2}));
  const auto actor = UnrollActor::Create(
      {.environment = Environments().Default("cartpole"), .copies = 2, .unroll = 10, .tickets = 2}, &replay,
      /*weights=*/nullptr, &remote);
  TANDEM_ASSERT_OK(actor);
  TANDEM_ASSERT_OK((*actor)->Admit(absl::InfinitePast()));
  EXPECT_THAT((*actor)->Act(InAMinute()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("require version 2")));
  served.Publish(0.0f);
  absl::Status acted;
  const absl::Time deadline = InAMinute();
  while (absl::IsUnavailable(acted = (*actor)->Act(InAMinute())) && MonotonicNow() < deadline)
    std::this_thread::yield();
  TANDEM_ASSERT_OK(acted);
  TANDEM_ASSERT_OK((*actor)->Deliver(absl::InfinitePast()));
  const auto batch = replay.Sample(kUnrollTable, {.batch = 2}, absl::InfinitePast());
  TANDEM_ASSERT_OK(batch);
  EXPECT_THAT(batch->min_versions, ::testing::ElementsAre(2, 2));
}

TEST(InferenceServerTest, APacedActorDoesNotActByTheWeightsOfAnEarlierLifeOfTheLearner) {
  Served served;
  for (int version = 1; version <= 5; ++version) served.Publish(0.0f);
  RemotePolicy remote(served.Connect());
  replay::LocalReplay replay;
  replay::TableOptions table = UnrollQueue(served.environment, 2);
  table.staleness = {.kind = replay::StalenessKind::kPace, .max_lag = 0, .batch = 2};
  TANDEM_ASSERT_OK(replay.CreateTable(table));
  const uint64_t earlier = served.publisher->version().epoch;
  TANDEM_ASSERT_OK(replay.Commit(kUnrollTable, {.epoch = earlier + 1, .version = 2}));
  const auto actor = UnrollActor::Create(
      {.environment = Environments().Default("cartpole"), .copies = 2, .unroll = 10, .tickets = 2}, &replay,
      /*weights=*/nullptr, &remote);
  TANDEM_ASSERT_OK(actor);
  TANDEM_ASSERT_OK((*actor)->Admit(absl::InfinitePast()));
  EXPECT_THAT((*actor)->Act(InAMinute()),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(absl::StrCat("(epoch ", earlier + 1, ")"))));
  EXPECT_EQ((*actor)->env_steps(), 0u);
  served.publisher = *weights::Publisher::Create(&served.local, {.model = kPolicyModel}, InAMinute());
  ASSERT_GT(served.publisher->version().epoch, earlier);
  served.Publish(0.0f);
  absl::Status acted;
  const absl::Time deadline = InAMinute();
  while (absl::IsUnavailable(acted = (*actor)->Act(InAMinute())) && MonotonicNow() < deadline)
    std::this_thread::yield();
  TANDEM_ASSERT_OK(acted);
  TANDEM_ASSERT_OK((*actor)->Deliver(absl::InfinitePast()));
  const auto batch = replay.Sample(kUnrollTable, {.batch = 2}, absl::InfinitePast());
  TANDEM_ASSERT_OK(batch);
  EXPECT_THAT(batch->min_versions, ::testing::ElementsAre(6, 6));
}

TEST(InferenceServerTest, AnActorGoesOnWithTheSameStepWhenTheServerIsBack) {
  Served served;
  served.Publish(0.0f);
  int calls = 0;
  const auto fail = [&](absl::string_view, int64_t) -> rpc::Fault {
    if (++calls % 3 != 0) return {};
    return {.kind = rpc::Fault::Kind::kFailBefore, .status = absl::AbortedError("injected fault")};
  };
  const std::shared_ptr<rpc::Channel> channel = rpc::ConnectLoopback(
      std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{served.server->service()}),
      fail);
  RemotePolicy remote(channel);
  replay::LocalReplay replay;
  TANDEM_ASSERT_OK(replay.CreateTable(UnrollQueue(served.environment, 64)));
  EnvironmentOptions cartpole = Environments().Default("cartpole");
  const auto actor = UnrollActor::Create({.environment = cartpole, .copies = 2, .unroll = 10}, &replay,
                                         /*weights=*/nullptr, &remote);
  TANDEM_ASSERT_OK(actor);
  int failures = 0;
  for (;;) {
    const absl::Status acted = (*actor)->Act(InAMinute());
    if (acted.ok()) break;
    EXPECT_THAT(acted, StatusIs(absl::StatusCode::kAborted));
    ++failures;
  }
  EXPECT_GE(failures, 3);
  EXPECT_EQ((*actor)->env_steps(), 20u);
  TANDEM_ASSERT_OK((*actor)->Deliver(absl::InfinitePast()));
  const auto batch = replay.Sample(kUnrollTable, {.batch = 2}, absl::InfinitePast());
  TANDEM_ASSERT_OK(batch);
  EXPECT_THAT(batch->min_versions, ::testing::ElementsAre(1, 1));
  const auto seen = batch->Find("observation")->values<float>(),
             next = batch->Find("next_observation")->values<float>();
  const auto terminated = batch->Find("terminated")->values<uint8_t>();
  for (size_t i = 0; i + 1 < 10; ++i) {
    if (terminated[i] != 0) continue;
    EXPECT_EQ(next.subspan(i * kObservation, kObservation),
              seen.subspan((i + 1) * kObservation, kObservation));
  }
}

}  // namespace
}  // namespace tandem::rl
