// SPDX-License-Identifier: Apache-2.0
// Actors and learners of worker/rl/roles, as threads of this process.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "cluster/store/memory_store.h"
#include "collectives/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/local_replay.h"
#include "replay/client/remote_replay.h"
#include "replay/server/replay_server.h"
#include "replay/wire/messages.h"
#include "rpc/transport/loopback.h"
#include "tests/testing/status_matchers.h"
#include "weights/client/local_weights.h"
#include "weights/client/publisher.h"
#include "worker/nn/gemm.h"
#include "worker/rl/envs/registry.h"
#include "worker/rl/learner/dqn_update.h"
#include "worker/rl/learner/impala_update.h"
#include "worker/rl/learner/registry.h"
#include "worker/rl/policy/policy_weights.h"
#include "worker/rl/roles/actor_role.h"
#include "worker/rl/roles/dqn_role_learner.h"
#include "worker/rl/roles/role_learner.h"
#include "worker/rl/roles/transition_actor.h"

namespace tandem::rl {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

LearnerOptions BanditOptions() {
  worker::UseOneBlasThread();
  LearnerOptions options;
  options.environment = Environments().Default("bandit");
  options.algorithm = Algorithms().Default("impala");
  options.algorithm.unroll = 5;
  options.algorithm.batch = 4;
  options.algorithm.lr = 0.01;
  options.environments = 2;
  options.policy.hidden = {8};
  options.env_steps = 4000;
  return options;
}

// The queue and the weights of a job.
struct Servers {
  explicit Servers(const LearnerOptions& options, int learners = 1) : local(&store) {
    const EnvironmentSpec spec = (*MakeEnvironment(options.environment))->spec();
    TANDEM_EXPECT_OK(replay.CreateTable(UnrollTableOptions(options, spec, learners)));
  }
  replay::LocalReplay replay;
  weights::ModelStore store;
  weights::LocalWeights local;
};

// A replay server with the table of a job.
struct ReplayProcess {
  explicit ReplayProcess(const replay::TableOptions& table)
      : server(*replay::ReplayServer::Make({})),
        services(
            std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{server->service()})) {
    TANDEM_EXPECT_OK(server->CreateTable(replay::ToProto(table)));
  }
  ~ReplayProcess() { server->Stop(); }
  std::unique_ptr<rpc::Channel> Connect() const { return rpc::ConnectLoopback(services); }

  const std::unique_ptr<replay::ReplayServer> server;
  const std::shared_ptr<const std::vector<rpc::Service>> services;
};

replay::TableOptions UnrollsOf(const LearnerOptions& options, int learners) {
  return UnrollTableOptions(options, (*MakeEnvironment(options.environment))->spec(), learners);
}

std::unique_ptr<collectives::ProcessGroup> Group(cluster::Store* store, int rank, int size) {
  auto group = collectives::InitProcessGroup(store, {.rank = rank, .world_size = size});
  TANDEM_CHECK_MSG(group.ok(), group.status().ToString());
  return *std::move(group);
}

TEST(RolesTest, LearnersKeepTheSameParametersAndActorsEndWithThem) {
  constexpr int kLearners = 2, kActors = 3;
  const LearnerOptions options = BanditOptions();
  Servers servers(options, kLearners);
  cluster::MemoryStore rendezvous;
  std::vector<std::thread> threads;
  for (int i = 0; i < kActors; ++i) {
    threads.emplace_back([&, i] {
      TANDEM_EXPECT_OK(RunActorLoop({.actor = ActorOptions(options, static_cast<size_t>(i))}, &servers.replay,
                                    &servers.local));
    });
  }
  std::vector<float> parameters[kLearners];
  uint64_t steps[kLearners] = {}, updates[kLearners] = {};
  size_t episodes[kLearners] = {};
  for (int rank = 0; rank < kLearners; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = Group(&rendezvous, rank, kLearners);
      auto made = MakeRoleLearner({.learner = options}, &servers.replay, &servers.local, group.get());
      TANDEM_ASSERT_OK(made);
      Learner& learner = **made;
      while (learner.env_steps() < options.env_steps) {
        TANDEM_ASSERT_OK(learner.Advance());
        episodes[rank] += learner.TakeEpisodes().size();
      }
      TANDEM_EXPECT_OK(learner.Finish());
      const absl::Span<float> values = learner.policy().parameters().values();
      parameters[rank].assign(values.begin(), values.end());
      steps[rank] = learner.env_steps();
      updates[rank] = learner.updates();
      EXPECT_LE(learner.lag()->greatest, static_cast<uint64_t>(options.algorithm.max_lag));
      EXPECT_EQ(learner.lag()->dropped, 0u);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parameters[0], parameters[1]);
  EXPECT_EQ(steps[0], steps[1]);
  EXPECT_EQ(updates[0], updates[1]);
  EXPECT_EQ(episodes[0] + episodes[1], steps[0]);  // each pull of a bandit is an episode
  const std::shared_ptr<const weights::Model> head = servers.store.Head(kPolicyModel);
  ASSERT_NE(head, nullptr);
  EXPECT_TRUE(head->info.last);
  EXPECT_EQ(head->info.step, updates[0]);
  EXPECT_EQ(std::vector<float>(head->values().begin(), head->values().end()), parameters[0]);
}

TEST(RolesTest, ALearnerThatIsAskedToStopStopsTheOthersWithIt) {
  LearnerOptions options = BanditOptions();
  options.env_steps = 1'000'000'000;
  for (const bool interrupted : {true, false}) {
    Servers servers(options, 2);
    cluster::MemoryStore rendezvous;
    std::vector<std::thread> threads;
    threads.emplace_back([&] {
      TANDEM_EXPECT_OK(RunActorLoop({.actor = ActorOptions(options, 0)}, &servers.replay, &servers.local));
    });
    int advances[2] = {};
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto group = Group(&rendezvous, rank, 2);
        auto made = MakeRoleLearner({.learner = options}, &servers.replay, &servers.local, group.get());
        TANDEM_ASSERT_OK(made);
        while (!(*made)->stopped()) {
          if (rank == 1 && advances[rank] == 5) (*made)->RequestStop(interrupted);
          TANDEM_ASSERT_OK((*made)->Advance());
          ++advances[rank];
        }
        EXPECT_EQ((*made)->interrupted(), interrupted) << rank;
        TANDEM_EXPECT_OK((*made)->Finish());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(advances[0], 6);
    EXPECT_EQ(advances[1], 6);
  }
}

TEST(RolesTest, ALearnerThatWaitsForUnrollsSeesThatItIsAskedToStop) {
  const LearnerOptions options = BanditOptions();
  Servers servers(options);  // there are no actors
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  std::atomic<bool> stop{false};
  const auto learner = MakeRoleLearner({.learner = options, .patience = absl::Minutes(10), .stop = &stop},
                                       &servers.replay, &servers.local, group.get());
  TANDEM_ASSERT_OK(learner);
  std::thread signal([&] {
    const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
    while (servers.replay.Info(kUnrollTable)->waiting_samples == 0 && MonotonicNow() < deadline)
      std::this_thread::yield();
    stop = true;
  });
  TANDEM_EXPECT_OK((*learner)->Advance());
  signal.join();
  EXPECT_TRUE((*learner)->stopped());
  EXPECT_TRUE((*learner)->interrupted());
  TANDEM_EXPECT_OK((*learner)->Finish());
  EXPECT_TRUE(servers.store.Head(kPolicyModel)->info.last);
}

// A replay server and a store of weights that are away from some moment on. The learner is asked to stop once
// it has called one of them then.
struct AwayServers : replay::LocalReplay, weights::LocalWeights {
  AwayServers(const LearnerOptions& options, int learners, weights::ModelStore* store) : LocalWeights(store) {
    TANDEM_EXPECT_OK(CreateTable(UnrollsOf(options, learners)));
  }
  absl::Status Away() {
    stop = true;
    return absl::UnavailableError("it is away");
  }
  absl::StatusOr<replay::TableInfo> Info(absl::string_view table, absl::Time deadline) override {
    if (replay_away) return Away();
    return LocalReplay::Info(table, deadline);
  }
  absl::Status Commit(absl::string_view table, const replay::CommittedVersion& version,
                      absl::Time deadline) override {
    ++replay_commits;
    return LocalReplay::Commit(table, version, deadline);
  }
  absl::StatusOr<weights::EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                                 absl::Time deadline) override {
    if (versions == 0) return Away();
    return LocalWeights::StartEpoch(model, publisher, deadline);
  }
  absl::Status Commit(const std::shared_ptr<const weights::Model>& model, absl::Time deadline) override {
    if (versions == 0) return Away();
    --versions;
    return LocalWeights::Commit(model, deadline);
  }
  std::atomic<bool> stop{false}, replay_away{false};
  std::atomic<int> versions{1 << 30};  // that can be published before the store is away
  std::atomic<int> replay_commits{0};
};

TEST(RolesTest, ALearnerThatIsAskedToStopBeforeItHasBegunEndsWithoutAnError) {
  const LearnerOptions options = BanditOptions();
  for (const bool replay_away : {true, false}) {
    weights::ModelStore store;
    AwayServers servers(options, /*learners=*/2, &store);
    if (replay_away) {
      servers.replay_away = true;
    } else {
      servers.versions = 0;
    }
    cluster::MemoryStore rendezvous;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto group = Group(&rendezvous, rank, 2);
        // Only rank 0 is asked to stop.
        const auto learner =
            MakeRoleLearner({.learner = options, .stop = rank == 0 ? &servers.stop : nullptr}, &servers,
                            &servers, group.get());
        TANDEM_ASSERT_OK(learner);
        TANDEM_EXPECT_OK((*learner)->Advance());
        EXPECT_TRUE((*learner)->stopped());
        EXPECT_TRUE((*learner)->interrupted());
        EXPECT_EQ((*learner)->updates(), 0u);
        TANDEM_EXPECT_OK((*learner)->Finish());
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(store.Head(kPolicyModel), nullptr);
  }
}

TEST(RolesTest, ALearnerThatIsAskedToStopWhileItPublishesDoesNotWaitForItsServers) {
  const LearnerOptions options = BanditOptions();
  weights::ModelStore store;
  AwayServers servers(options, /*learners=*/1, &store);
  servers.versions = 1;  // the first one
  std::atomic<bool> stop_actor{false};
  std::thread actor([&] {
    TANDEM_EXPECT_OK(
        RunActorLoop({.actor = ActorOptions(options, 0), .stop = &stop_actor}, &servers, &servers));
  });
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  const auto learner =
      MakeRoleLearner({.learner = options, .stop = &servers.stop}, &servers, &servers, group.get());
  TANDEM_ASSERT_OK(learner);
  TANDEM_EXPECT_OK((*learner)->Advance());
  EXPECT_EQ((*learner)->updates(), 1u);
  EXPECT_EQ(servers.replay_commits, 1) << "only that of the beginning";
  TANDEM_EXPECT_OK((*learner)->Advance());
  EXPECT_TRUE((*learner)->stopped());
  EXPECT_TRUE((*learner)->interrupted());
  EXPECT_THAT((*learner)->Finish(), StatusIs(absl::StatusCode::kUnavailable));
  stop_actor = true;
  actor.join();
}

TEST(RolesTest, ALearnerWithoutActorsSaysWhatItWaitsFor) {
  const LearnerOptions options = BanditOptions();
  Servers servers(options);
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  const auto learner = MakeRoleLearner({.learner = options, .patience = absl::ZeroDuration()},
                                       &servers.replay, &servers.local, group.get());
  TANDEM_ASSERT_OK(learner);
  EXPECT_THAT((*learner)->Advance(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("has waited for unrolls"), HasSubstr("it holds 0 items"),
                             HasSubstr("are the actors alive?"))));
}

TEST(RolesTest, AnActorWithoutALearnerGivesUp) {
  const LearnerOptions options = BanditOptions();
  Servers servers(options);
  EXPECT_THAT(
      RunActorLoop({.actor = ActorOptions(options, 0), .patience = absl::ZeroDuration()}, &servers.replay,
                   &servers.local),
      StatusIs(absl::StatusCode::kDeadlineExceeded,
               AllOf(HasSubstr("has waited for weights"), HasSubstr("no learner has published any"))));
  const std::atomic<bool> stop{true};
  TANDEM_EXPECT_OK(
      RunActorLoop({.actor = ActorOptions(options, 0), .stop = &stop}, &servers.replay, &servers.local));
}

TEST(RolesTest, ALearnerThatIsReplacedEnds) {
  const LearnerOptions options = BanditOptions();
  Servers servers(options);
  cluster::MemoryStore rendezvous[2];
  const auto first_group = Group(&rendezvous[0], 0, 1), second_group = Group(&rendezvous[1], 0, 1);
  const auto make = [&](collectives::ProcessGroup* group) {
    return *MakeRoleLearner({.learner = options, .patience = absl::ZeroDuration()}, &servers.replay,
                            &servers.local, group);
  };
  const std::unique_ptr<Learner> first = make(first_group.get()), second = make(second_group.get());
  // Each begins to publish, and then gets no unrolls.
  EXPECT_THAT(first->Advance(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  const uint64_t version = servers.store.Head(kPolicyModel)->info.version.number;
  EXPECT_THAT(second->Advance(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_GT(servers.store.Head(kPolicyModel)->info.version.number, version);
  EXPECT_THAT(first->Advance(), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replaced by")));
}

TEST(RolesTest, VersionsGoOnAboveThoseThatATableKnows) {
  // The table has outlived the store of the weights, and the learner has no checkpoint.
  const LearnerOptions options = BanditOptions();
  Servers servers(options);
  TANDEM_ASSERT_OK(servers.replay.Commit(kUnrollTable, {.epoch = 1, .version = 50}));
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  const std::unique_ptr<Learner> learner = *MakeRoleLearner(
      {.learner = options, .patience = absl::ZeroDuration()}, &servers.replay, &servers.local, group.get());
  EXPECT_THAT(learner->Advance(), StatusIs(absl::StatusCode::kDeadlineExceeded));  // there are no actors
  EXPECT_EQ(servers.store.Head(kPolicyModel)->info.version.number, 51u);
  EXPECT_EQ(servers.replay.Info(kUnrollTable)->staleness.head->version, 51);
}

TEST(RolesTest, ALearnerThatBeginsWaitsForItsReplayServer) {
  const LearnerOptions options = BanditOptions();
  const ReplayProcess process(UnrollsOf(options, 1));
  std::atomic<int> calls{0};
  const auto away = [&](absl::string_view method, int64_t) -> rpc::Fault {
    if (method != "/tandem.v1.Replay/ListTables" || ++calls > 20) return {};
    return {.kind = rpc::Fault::Kind::kFailBefore, .status = absl::UnavailableError("it starts")};
  };
  replay::RemoteReplay replay(rpc::ConnectLoopback(process.services, away),
                              {.call_timeout = absl::Milliseconds(100)});
  replay::RemoteReplay of_actor(process.Connect(), {});
  weights::ModelStore store;
  weights::LocalWeights weights(&store);
  std::atomic<bool> stop{false};
  std::thread actor([&] {
    TANDEM_EXPECT_OK(RunActorLoop({.actor = ActorOptions(options, 0), .stop = &stop}, &of_actor, &weights));
  });
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  const std::unique_ptr<Learner> learner =
      *MakeRoleLearner({.learner = options}, &replay, &weights, group.get());
  TANDEM_EXPECT_OK(learner->Advance());
  EXPECT_GT(calls, 20);
  stop = true;
  actor.join();
}

TEST(RolesTest, ATableForOtherLearnersIsRefused) {
  const LearnerOptions options = BanditOptions();
  Servers servers(options, /*learners=*/2);
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  const std::unique_ptr<Learner> learner =
      *MakeRoleLearner({.learner = options}, &servers.replay, &servers.local, group.get());
  EXPECT_THAT(learner->Advance(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                           AllOf(HasSubstr("replay/0"), HasSubstr("must run the same job"))));
}

// A channel to a server that is replaced: each call goes to the life that `choose` returns.
class ChannelToLives : public rpc::Channel {
 public:
  using Choose = std::function<const ReplayProcess*(absl::string_view method)>;
  ChannelToLives(std::vector<const ReplayProcess*> lives, Choose choose) : choose_(std::move(choose)) {
    for (const ReplayProcess* life : lives) channels_[life] = life->Connect();
  }
  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    channels_.at(choose_(method))->CallAsync(method, std::move(request), options, std::move(done));
  }
  absl::string_view transport() const override { return "loopback"; }
  const std::string& target() const override { return target_; }

 private:
  const Choose choose_;
  const std::string target_ = "loopback";
  std::map<const ReplayProcess*, std::unique_ptr<rpc::Channel>> channels_;
};

// The weights of a store that can be replaced by an empty one.
class WeightsOfLives : public weights::Weights {
 public:
  WeightsOfLives() { Restart(); }
  void Restart() {
    absl::MutexLock lock(&mutex_);
    lives_.push_back(std::make_unique<Life>());
    now_ = &lives_.back()->local;
  }
  absl::StatusOr<weights::EpochGrant> StartEpoch(absl::string_view model, absl::string_view publisher,
                                                 absl::Time deadline) override {
    return now()->StartEpoch(model, publisher, deadline);
  }
  absl::Status Commit(const std::shared_ptr<const weights::Model>& model, absl::Time deadline) override {
    return now()->Commit(model, deadline);
  }
  absl::StatusOr<std::shared_ptr<const weights::Model>> Newer(absl::string_view model,
                                                              const weights::ModelVersion& than,
                                                              absl::Time deadline) override {
    return now()->Newer(model, than, deadline);
  }
  absl::StatusOr<weights::ModelVersion> Head(absl::string_view model, absl::Time deadline,
                                             std::stop_token) override {
    return now()->Head(model, deadline);
  }

 private:
  struct Life {
    weights::ModelStore store;
    weights::LocalWeights local{&store};
  };
  weights::LocalWeights* now() {
    absl::MutexLock lock(&mutex_);
    return now_;
  }
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Life>> lives_;  // all of them: calls may be under way
  weights::LocalWeights* now_ = nullptr;
};

// Waits until `holds` returns true, at most a minute.
void Await(const std::function<bool()>& holds) {
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  while (!holds()) {
    ASSERT_LT(MonotonicNow(), deadline);
    std::this_thread::yield();
  }
}

TEST(RolesTest, AServerThatComesBackWhileALearnerHasItsBatchLearnsTheVersionFromTheOther) {
  // Rank 0 has taken its batch, and rank 1 has committed, when the server of both is replaced by an empty
  // one.
  const LearnerOptions options = BanditOptions();
  const ReplayProcess earlier(UnrollsOf(options, 2)), later(UnrollsOf(options, 2));
  replay::RemoteReplay of_earlier(earlier.Connect(), {}), of_later(later.Connect(), {});
  replay::RemoteReplay of_both(
      std::make_shared<ChannelToLives>(
          std::vector<const ReplayProcess*>{&earlier, &later},
          [&](absl::string_view method) { return method == "/tandem.v1.Replay/Commit" ? &earlier : &later; }),
      {});
  weights::ModelStore store;
  weights::LocalWeights weights(&store);
  cluster::MemoryStore rendezvous;
  std::atomic<bool> stop{false};
  std::vector<std::thread> actors, learners;
  for (replay::Replay* const replay : {&of_earlier, &of_later}) {
    actors.emplace_back([&, replay] {
      TANDEM_EXPECT_OK(RunActorLoop({.actor = ActorOptions(options, 0), .stop = &stop}, replay, &weights));
    });
  }
  for (int rank = 0; rank < 2; ++rank) {
    learners.emplace_back([&, rank] {
      const auto group = Group(&rendezvous, rank, 2);
      const auto learner = MakeRoleLearner({.learner = options, .patience = absl::Minutes(1)},
                                           rank == 0 ? &of_earlier : &of_both, &weights, group.get());
      TANDEM_ASSERT_OK(learner);
      for (int i = 0; i < 3; ++i) TANDEM_ASSERT_OK((*learner)->Advance());
      EXPECT_EQ((*learner)->updates(), 3u);
    });
  }
  for (std::thread& learner : learners) learner.join();
  stop = true;
  for (std::thread& actor : actors) actor.join();
}

TEST(RolesTest, WeightsThatAreLostWhileRankZeroWaitsForTheOthersAreThereAgain) {
  const LearnerOptions options = BanditOptions();
  replay::LocalReplay replays[2];
  for (replay::LocalReplay& replay : replays) TANDEM_ASSERT_OK(replay.CreateTable(UnrollsOf(options, 1)));
  WeightsOfLives weights;
  cluster::MemoryStore rendezvous;
  std::atomic<bool> stop{false};
  std::vector<std::thread> actors, learners;
  const auto act = [&](size_t index) {
    TANDEM_EXPECT_OK(
        RunActorLoop({.actor = ActorOptions(options, index), .stop = &stop}, &replays[index], &weights));
  };
  actors.emplace_back(act, 0);
  for (int rank = 0; rank < 2; ++rank) {
    learners.emplace_back([&, rank] {
      const auto group = Group(&rendezvous, rank, 2);
      const auto learner = MakeRoleLearner({.learner = options, .servers = 2, .patience = absl::Minutes(1)},
                                           &replays[rank], &weights, group.get());
      TANDEM_ASSERT_OK(learner);
      for (int i = 0; i < 3; ++i) TANDEM_ASSERT_OK((*learner)->Advance());
    });
  }
  // Rank 0 has its batch, and rank 1 has no actor yet.
  Await([&] { return replays[0].Info(kUnrollTable)->samples >= 4; });
  weights.Restart();
  actors.emplace_back(act, 1);
  for (std::thread& learner : learners) learner.join();
  stop = true;
  for (std::thread& actor : actors) actor.join();
}

TEST(RolesTest, TheLastWeightsAreThereAgainIfTheyAreLostBeforeAllLearnersHaveEnded) {
  const LearnerOptions options = BanditOptions();
  Servers servers(options, 2);
  WeightsOfLives weights;
  cluster::MemoryStore rendezvous;
  const auto is_last = [&] {
    const auto head = weights.Newer(kPolicyModel, {}, absl::InfinitePast());
    return head.ok() && *head != nullptr && (*head)->info.last;
  };
  std::vector<std::thread> threads;
  threads.emplace_back([&] {
    TANDEM_EXPECT_OK(RunActorLoop({.actor = ActorOptions(options, 0)}, &servers.replay, &weights));
  });
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = Group(&rendezvous, rank, 2);
      const auto learner = MakeRoleLearner({.learner = options, .patience = absl::Minutes(1)},
                                           &servers.replay, &weights, group.get());
      TANDEM_ASSERT_OK(learner);
      TANDEM_ASSERT_OK((*learner)->Advance());
      if (rank == 1) {
        Await(is_last);
        weights.Restart();
        Await(is_last);
      }
      TANDEM_EXPECT_OK((*learner)->Finish());
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// An actor whose replay server and weights are replaced by empty ones.
struct LivesOfServers {
  LivesOfServers() {
    actor = std::thread([this] {
      TANDEM_EXPECT_OK(
          RunActorLoop({.actor = ActorOptions(options, 0), .patience = absl::Minutes(1), .stop = &stop},
                       &replay, &weights));
    });
  }
  ~LivesOfServers() {
    stop = true;
    actor.join();
  }
  // A learner begins, whose first version is `version`.
  std::unique_ptr<weights::Publisher> Begin(uint64_t version) {
    auto publisher = weights::Publisher::Create(
        &weights, {.model = kPolicyModel, .after_version = version - 1}, MonotonicNow() + absl::Minutes(1));
    TANDEM_CHECK_MSG(publisher.ok(), publisher.status().ToString());
    return *std::move(publisher);
  }
  void Publish(weights::Publisher* publisher) {
    TANDEM_ASSERT_OK(publisher->Publish(TensorsOf(policy), {}, MonotonicNow() + absl::Minutes(1)));
  }
  // A learner begins, and publishes `version`.
  void Publish(uint64_t version) { Publish(Begin(version).get()); }
  static replay::TableOptions ShortLeases(replay::TableOptions table) {
    table.staleness.lease = absl::Milliseconds(300);
    return table;
  }

  const LearnerOptions options = BanditOptions();
  const ReplayProcess earlier{ShortLeases(UnrollsOf(options, 1))}, later{ShortLeases(UnrollsOf(options, 1))};
  replay::RemoteReplay of_earlier{earlier.Connect(), {}}, of_later{later.Connect(), {}};
  std::atomic<bool> restarted{false}, stop{false};
  replay::RemoteReplay replay{
      std::make_shared<ChannelToLives>(std::vector<const ReplayProcess*>{&earlier, &later},
                                       [this](absl::string_view) { return restarted ? &later : &earlier; }),
      {.call_timeout = absl::Seconds(5)}};
  WeightsOfLives weights;
  ActorCritic policy{(*MakeEnvironment(options.environment))->spec(), options.policy, 1};
  std::thread actor;
};

TEST(RolesTest, AnActorOutlivesItsReplayServerAndTheWeightsOfALearnerThatBeginsAnew) {
  LivesOfServers lives;
  // The tickets require version 50, which is lost before the actor has taken it.
  TANDEM_ASSERT_OK(lives.of_earlier.Commit(kUnrollTable, {.epoch = 1, .version = 50}));
  lives.Publish(49);
  Await([&] { return lives.of_earlier.Info(kUnrollTable)->staleness.running > 0; });
  lives.weights.Restart();
  lives.Publish(2);
  TANDEM_ASSERT_OK(lives.of_later.Commit(kUnrollTable, {.epoch = 2, .version = 2}));
  lives.restarted = true;
  const auto batch = lives.of_later.Sample(kUnrollTable, {.batch = 1}, MonotonicNow() + absl::Minutes(1));
  TANDEM_ASSERT_OK(batch);
  EXPECT_THAT(batch->min_versions, ::testing::ElementsAre(2));
}

TEST(RolesTest, AnActorActsByTheWeightsOfALearnerThatBeginsAnewAlthoughTheirNumberIsSmaller) {
  LivesOfServers lives;
  lives.Publish(50);
  TANDEM_ASSERT_OK(lives.of_earlier.Commit(kUnrollTable, {.epoch = 1, .version = 50}));
  // The table takes no more unrolls by version 50, and the actor waits for tickets: first here, then of the
  // server that has started again, whose learner has not begun.
  Await([&] { return lives.of_earlier.Info(kUnrollTable)->staleness.waiting_admits > 0; });
  lives.weights.Restart();
  lives.restarted = true;
  Await([&] { return lives.of_later.Info(kUnrollTable)->staleness.waiting_admits > 0; });
  lives.Publish(2);
  TANDEM_ASSERT_OK(lives.of_later.Commit(kUnrollTable, {.epoch = 2, .version = 2}));
  const auto batch = lives.of_later.Sample(kUnrollTable, {.batch = 1}, MonotonicNow() + absl::Minutes(1));
  TANDEM_ASSERT_OK(batch);
  EXPECT_THAT(batch->min_versions, ::testing::ElementsAre(2));
}

TEST(RolesTest, AnActorWithWeightsOfAnEarlierLifeWaitsForThoseThatItsTicketsRequire) {
  LivesOfServers lives;
  const std::unique_ptr<weights::Publisher> first = lives.Begin(50);
  lives.Publish(first.get());
  TANDEM_ASSERT_OK(lives.of_earlier.Commit(kUnrollTable, {.epoch = first->version().epoch, .version = 50}));
  Await([&] { return lives.of_earlier.Info(kUnrollTable)->staleness.waiting_admits > 0; });
  lives.weights.Restart();
  const std::unique_ptr<weights::Publisher> second = lives.Begin(2);
  ASSERT_GT(second->version().epoch, first->version().epoch);
  // The actor gets tickets for version 2 before it can have it. Its version 50 is the larger number.
  TANDEM_ASSERT_OK(lives.of_later.Commit(kUnrollTable, {.epoch = second->version().epoch, .version = 2}));
  lives.restarted = true;
  Await([&] { return lives.of_later.Info(kUnrollTable)->staleness.running > 0; });
  lives.Publish(second.get());
  const auto batch = lives.of_later.Sample(kUnrollTable, {.batch = 1}, MonotonicNow() + absl::Minutes(1));
  TANDEM_ASSERT_OK(batch);
  EXPECT_THAT(batch->min_versions, ::testing::ElementsAre(2));
}

LearnerOptions DqnBanditOptions() {
  LearnerOptions options = BanditOptions();
  options.algorithm = Algorithms().Default("dqn");
  options.algorithm.n_step = 1;
  options.algorithm.batch = 16;
  options.algorithm.learning_starts = 100;
  options.algorithm.update_every = 4;
  options.algorithm.target_every = 100;
  options.algorithm.replay_size = 2000;
  options.algorithm.lr = 0.01;
  return options;
}

// The replay servers and the weights of a job of DQN.
struct DqnServers {
  explicit DqnServers(const LearnerOptions& options) : local(&store) {
    for (replay::LocalReplay& replay : replays) {
      TANDEM_EXPECT_OK(replay.CreateTable(TransitionTableOptions(options, 2)));
      TANDEM_EXPECT_OK(replay.CreateTable(EpisodeTableOptions()));
    }
  }
  std::vector<replay::Replay*> shards() { return {&replays[0], &replays[1]}; }
  replay::LocalReplay replays[2];
  weights::ModelStore store;
  weights::LocalWeights local;
};

TEST(RolesTest, LearnersOfDqnSampleFromAllReplayServersAndKeepTheSameParameters) {
  constexpr int kLearners = 2, kActors = 2;
  const LearnerOptions options = DqnBanditOptions();
  DqnServers servers(options);
  cluster::MemoryStore rendezvous;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kActors; ++i) {
    threads.emplace_back([&, i] {
      TANDEM_EXPECT_OK(RunTransitionActorLoop({.actor = {.learner = options, .index = i}},
                                              &servers.replays[i], &servers.local));
    });
  }
  std::vector<float> parameters[kLearners];
  size_t episodes[kLearners] = {};
  for (int rank = 0; rank < kLearners; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = Group(&rendezvous, rank, kLearners);
      auto made = MakeDqnRoleLearner({.learner = options}, servers.shards(), &servers.local, group.get());
      TANDEM_ASSERT_OK(made);
      Learner& learner = **made;
      while (learner.env_steps() < options.env_steps) {
        TANDEM_ASSERT_OK(learner.Advance());
        episodes[rank] += learner.TakeEpisodes().size();
      }
      TANDEM_EXPECT_OK(learner.Finish());
      const absl::Span<float> values = learner.policy().parameters().values();
      parameters[rank].assign(values.begin(), values.end());
      EXPECT_EQ(learner.updates(), (learner.env_steps() - 100) / 4);
      const float observation = 1;
      float best = -1;
      learner.policy().ActGreedily({&observation, 1}, 1, {&best, 1});
      EXPECT_EQ(best, 3) << "the last of the four arms pays most";
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(parameters[0], parameters[1]);
  EXPECT_GT(episodes[0], 0u);
  EXPECT_EQ(episodes[1], 0u);  // rank 0 reports
  uint64_t inserts = 0;
  for (replay::LocalReplay& replay : servers.replays) {
    EXPECT_GT(replay.Info(kTransitionTable)->samples, 0u);
    inserts += replay.Info(kTransitionTable)->inserts;
  }
  const std::shared_ptr<const weights::Model> head = servers.store.Head(kPolicyModel);
  ASSERT_NE(head, nullptr);
  EXPECT_TRUE(head->info.last);
  // Actors wait while they are ahead. Each goes on for as many steps when it gets a new version.
  EXPECT_LE(LeadOf(head->info), (2 * kActors + 1) * GreatestLead(options)) << inserts;
}

TEST(RolesTest, ALearnerOfDqnWithoutActorsSaysSoAndSeesThatItIsAskedToStop) {
  const LearnerOptions options = DqnBanditOptions();
  DqnServers servers(options);
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  const auto impatient = MakeDqnRoleLearner({.learner = options, .patience = absl::ZeroDuration()},
                                            servers.shards(), &servers.local, group.get());
  TANDEM_ASSERT_OK(impatient);
  EXPECT_THAT((*impatient)->Advance(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("has waited for transitions"), HasSubstr("are the actors alive?"))));
  std::atomic<bool> stop{false};
  const auto learner =
      MakeDqnRoleLearner({.learner = options, .stop = &stop}, servers.shards(), &servers.local, group.get());
  TANDEM_ASSERT_OK(learner);
  TANDEM_EXPECT_OK((*learner)->Advance());
  EXPECT_FALSE((*learner)->stopped());
  stop = true;
  TANDEM_EXPECT_OK((*learner)->Advance());
  EXPECT_TRUE((*learner)->stopped());
  EXPECT_TRUE((*learner)->interrupted());
}

// Inserts transitions of zeros.
void InsertTransitions(const LearnerOptions& options, replay::Replay* replay, int count) {
  const EnvironmentSpec spec = (*MakeEnvironment(options.environment))->spec();
  const std::vector<float> zeros(spec.observation_size, 0.0f);
  const float zero = 0;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto writer, replay::Writer::Create(replay, TransitionColumns(spec), {}));
  for (int i = 0; i < count; ++i) {
    TANDEM_ASSERT_OK(writer->Append({absl::MakeConstSpan(zeros), absl::MakeConstSpan(&zero, 1),
                                     absl::MakeConstSpan(&zero, 1), absl::MakeConstSpan(&zero, 1),
                                     absl::MakeConstSpan(zeros)}));
    TANDEM_ASSERT_OK(writer->CreateItem(kTransitionTable, std::nullopt, writer->Last(1)));
  }
  TANDEM_ASSERT_OK(writer->Flush(MonotonicNow() + absl::Minutes(1)));
}

TEST(RolesTest, ALearnerOfDqnDrawsNothingBeforeTheTablesHaveTheTransitionsThatLearningBeginsWith) {
  const LearnerOptions options = DqnBanditOptions();
  DqnServers servers(options);
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  auto learner = *MakeDqnRoleLearner({.learner = options}, servers.shards(), &servers.local, group.get());
  const auto samples = [&] {
    return servers.replays[0].Info(kTransitionTable)->samples +
           servers.replays[1].Info(kTransitionTable)->samples;
  };
  for (replay::LocalReplay& replay : servers.replays)
    ASSERT_NO_FATAL_FAILURE(InsertTransitions(options, &replay, 40));
  // It waits for further transitions meanwhile, which is long enough to draw batches.
  TANDEM_ASSERT_OK(learner->Advance());
  EXPECT_EQ(samples(), 0u);
  for (replay::LocalReplay& replay : servers.replays)
    ASSERT_NO_FATAL_FAILURE(InsertTransitions(options, &replay, 40));
  while (learner->updates() == 0) TANDEM_ASSERT_OK(learner->Advance());
  EXPECT_GT(samples(), 0u);
}

TEST(RolesTest, ALearnerOfDqnGoesOnFromItsStateWithTheTablesThatAreThere) {
  LearnerOptions options = DqnBanditOptions();
  options.env_steps = 1000;
  DqnServers servers(options);
  std::atomic<bool> stop{false};
  std::thread actor([&] {
    TANDEM_EXPECT_OK(RunTransitionActorLoop({.actor = {.learner = options}, .stop = &stop},
                                            &servers.replays[0], &servers.local));
  });
  LearnerState state;
  std::vector<float> parameters;
  for (const uint64_t goal : {600u, 1200u}) {
    cluster::MemoryStore rendezvous;
    const auto group = Group(&rendezvous, 0, 1);
    auto learner = *MakeDqnRoleLearner({.learner = options}, servers.shards(), &servers.local, group.get());
    if (state.updates > 0) {
      std::copy(parameters.begin(), parameters.end(), learner->policy().parameters().values().begin());
      TANDEM_ASSERT_OK(learner->Restore(state));
      EXPECT_EQ(learner->env_steps(), state.env_steps);
    }
    while (learner->env_steps() < goal) TANDEM_ASSERT_OK(learner->Advance());
    EXPECT_EQ(learner->updates(), (learner->env_steps() - 100) / 4);
    state = learner->state();
    const absl::Span<float> values = learner->policy().parameters().values();
    parameters.assign(values.begin(), values.end());
  }
  stop = true;
  actor.join();
}

TEST(RolesTest, ALearnerOfDqnCountsStepsFromThoseOfACheckpointOfAnotherRate) {
  LearnerOptions options = DqnBanditOptions();
  DqnServers servers(options);
  std::atomic<bool> stop{false};
  std::thread actor([&] {
    TANDEM_EXPECT_OK(RunTransitionActorLoop({.actor = {.learner = options}, .stop = &stop},
                                            &servers.replays[0], &servers.local));
  });
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  auto learner = *MakeDqnRoleLearner({.learner = options}, servers.shards(), &servers.local, group.get());
  LearnerState state = learner->state();
  state.env_steps = 1600;
  state.updates = 90;
  state.version = 7;
  TANDEM_ASSERT_OK(learner->Restore(state));
  while (learner->updates() < 100) TANDEM_ASSERT_OK(learner->Advance());
  EXPECT_EQ(learner->env_steps(), 1600 + 4 * (learner->updates() - 90));
  EXPECT_GT(learner->state().version, 7u);
  stop = true;
  actor.join();
}

TEST(RolesTest, ALearnerOfDqnGoesOnWithoutTheTransitionsOfAReplayServerThatStartsAgain) {
  const LearnerOptions options = DqnBanditOptions();
  const ReplayProcess earlier(TransitionTableOptions(options, 1)), later(TransitionTableOptions(options, 1));
  for (const ReplayProcess* const life : {&earlier, &later})
    TANDEM_ASSERT_OK(life->server->CreateTable(replay::ToProto(EpisodeTableOptions())));
  std::atomic<bool> restarted{false}, stop{false};
  const auto connect = [&] {
    return std::make_shared<ChannelToLives>(std::vector<const ReplayProcess*>{&earlier, &later},
                                            [&](absl::string_view) { return restarted ? &later : &earlier; });
  };
  replay::RemoteReplay of_actor(connect(), {}), of_learner(connect(), {}), of_earlier(earlier.Connect(), {}),
      of_later(later.Connect(), {});
  weights::ModelStore store;
  weights::LocalWeights weights(&store);
  std::thread actor([&] {
    TANDEM_EXPECT_OK(RunTransitionActorLoop(
        {.actor = {.learner = options}, .patience = absl::Minutes(1), .stop = &stop}, &of_actor, &weights));
  });
  cluster::MemoryStore rendezvous;
  const auto group = Group(&rendezvous, 0, 1);
  auto learner = *MakeDqnRoleLearner({.learner = options, .patience = absl::Minutes(1)}, {&of_learner},
                                     &weights, group.get());
  while (learner->updates() == 0) TANDEM_ASSERT_OK(learner->Advance());
  // The actor has done more steps than the learner, and waits for it.
  Await([&] {
    return of_earlier.Info(kTransitionTable)->inserts >=
           static_cast<uint64_t>(options.algorithm.learning_starts + GreatestLead(options));
  });
  restarted = true;
  const uint64_t goal = learner->updates() + 100;
  while (learner->updates() < goal) TANDEM_ASSERT_OK(learner->Advance());
  EXPECT_EQ(learner->env_steps(), 100 + 4 * learner->updates());
  std::map<std::string, double> figures;
  for (const auto& [name, value] : learner->figures()) figures[std::string(name)] = value;
  EXPECT_GT(figures["replay/lost_transitions"], 0);
  EXPECT_LE(figures["replay/lost_transitions"],
            static_cast<double>(of_earlier.Info(kTransitionTable)->items));
  // The updates are of new steps, but for those that were seen and not learned.
  EXPECT_GE(of_later.Info(kTransitionTable)->inserts, 4u * 100 - options.algorithm.learning_starts);
  stop = true;
  actor.join();
}

TEST(RolesTest, ActorsOfDqnExploreMoreAndLess) {
  LearnerOptions options = DqnBanditOptions();
  options.algorithm.epsilon_end = 0.4;
  options.algorithm.epsilon_spread = 7;  // as in the paper
  EXPECT_DOUBLE_EQ(ActorEpsilonAt(options, options.env_steps, 0, 4), 0.4);
  EXPECT_DOUBLE_EQ(ActorEpsilonAt(options, options.env_steps, 3, 4), std::pow(0.4, 8));
  EXPECT_DOUBLE_EQ(ActorEpsilonAt(options, options.env_steps, 0, 1), 0.4);
  EXPECT_DOUBLE_EQ(ActorEpsilonAt(options, 0, 3, 4), 1);
}

TEST(RolesTest, JobsThatCannotHaveRolesAreRefused) {
  LearnerOptions options = BanditOptions();
  Servers servers(options);
  cluster::MemoryStore rendezvous;
  std::vector<std::thread> threads;
  options.policy.normalize_observations = true;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto group = Group(&rendezvous, rank, 2);
      EXPECT_THAT(
          MakeRoleLearner({.learner = options}, &servers.replay, &servers.local, group.get()).status(),
          StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("normalize_observations needs a single")));
    });
  }
  for (std::thread& thread : threads) thread.join();
  options = BanditOptions();
  options.algorithm = Algorithms().Default("ppo");
  cluster::MemoryStore alone;
  const auto group = Group(&alone, 0, 1);
  EXPECT_THAT(MakeRoleLearner({.learner = options}, &servers.replay, &servers.local, group.get()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'ppo' acts in its own process")));
  options = DqnBanditOptions();
  options.policy.normalize_observations = true;
  DqnServers dqn(options);
  EXPECT_THAT(MakeDqnRoleLearner({.learner = options}, dqn.shards(), &dqn.local, group.get()).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("normalize_observations")));
}

}  // namespace
}  // namespace tandem::rl
