// SPDX-License-Identifier: Apache-2.0
// Tickets, committed versions and their effect over the wire.

#include <functional>
#include <map>
#include <memory>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/random.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/sampler.h"
#include "replay/server/replay_server.h"
#include "replay/wire/messages.h"
#include "rpc/forwarding_channel.h"
#include "rpc/transport/loopback.h"
#include "tests/replay/server/replay_peer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IdsOf;
using testing::IdWriter;
using testing::ReplaceableServer;

absl::Time Soon() { return MonotonicNow() + absl::Seconds(30); }

// Rolls out an item of one step by a ticket of its own.
absl::Status RollOut(Replay& replay, Writer& writer, const std::string& actor, int64_t id) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Ticket> tickets, replay.Admit("queue", {.actor = actor}, Soon()));
  writer.Hold("queue", tickets[0]);
  const std::vector<int64_t> value = {id};
  TANDEM_RETURN_IF_ERROR(writer.Append({value}, {.policy_version = tickets[0].min_version}, Soon()));
  TANDEM_RETURN_IF_ERROR(writer.CreateItem("queue", std::nullopt, writer.Last(1), Soon()));
  return writer.Flush(Soon());
}

std::vector<std::string> Why(RemoteReplay& replay) {
  v1::ReplayExplainRequest request;
  request.set_table("queue");
  v1::ReplayExplainResponse response;
  TANDEM_CHECK(replay.Call("Explain", request, &response).ok());
  return {response.reasons().begin(), response.reasons().end()};
}

TEST(PacedServer, LogsWhatCallsWaitForThatDoNotGoOn) {
  absl::Mutex mutex;
  std::vector<std::string> lines;  // guarded by mutex
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server,
                              ReplayServer::Make({.name = "replay/3",
                                                  .log_waits_every = absl::ZeroDuration(),
                                                  .log_wait = [&](const std::string& line) {
                                                    absl::MutexLock lock(&mutex);
                                                    lines.push_back(line);
                                                  }}));
  TANDEM_ASSERT_OK(
      server->CreateTable(ToProto(TableOptions::PacedQueue("queue", /*batch=*/1, /*max_lag=*/0))));
  std::stop_source end;
  RemoteReplay replay(rpc::ConnectLoopback(std::make_shared<const std::vector<rpc::Service>>(
                          std::vector<rpc::Service>{server->service()})),
                      {.cancel = end.get_token()});
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 3}));
  TANDEM_ASSERT_OK(replay.Admit("queue", {.actor = "actor/0"}));  // and stops then
  std::thread learner([&] { EXPECT_FALSE(replay.Sample("queue", {.batch = 1}, Soon()).ok()); });
  {
    absl::MutexLock lock(&mutex);
    const auto some = [&] { return !lines.empty(); };
    EXPECT_TRUE(AwaitUntil(&mutex, absl::Condition(&some), Soon()));
    EXPECT_THAT(lines,
                Contains(AllOf(HasSubstr("1 sample of replay/3 waits: table 'queue' gives no batch of 1"),
                               HasSubstr("actor/0, since"))));
  }
  end.request_stop();
  learner.join();
}

TEST(PacedServer, AnAdmissionWaitsWithoutAThreadUntilTheLearnerCommits) {
  ReplaceableServer server;  // the loopback has one thread, so a handler that blocks would block all calls
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", /*batch=*/1, /*max_lag=*/0)));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 3}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto first, replay.Admit("queue", {.actor = "actor/0"}));
  EXPECT_EQ(first[0].min_version, 3);
  EXPECT_EQ(first[0].epoch, 1u);
  EXPECT_EQ(first[0].lease, StalenessOptions().lease);
  EXPECT_THAT(replay.Admit("queue", {.actor = "actor/1"}, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("admits no rollout until")));
  std::thread waiting([&] {
    const auto next = replay.Admit("queue", {.actor = "actor/1"}, Soon());
    TANDEM_EXPECT_OK(next);
    EXPECT_EQ(next.ok() ? (*next)[0].min_version : 0, 4);
  });
  const absl::Time deadline = Soon();
  while (server.Info("queue").staleness().waiting_admits() == 0 && MonotonicNow() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_THAT(Why(replay), AllOf(Contains(HasSubstr("the oldest rollout runs in actor/0")),
                                 Contains("0 inserts, 0 samples and 1 admission wait")));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  writer->Hold("queue", first[0]);
  const std::vector<int64_t> value = {1};
  TANDEM_ASSERT_OK(writer->Append({value}, {.policy_version = 3}));
  TANDEM_ASSERT_OK(writer->CreateItem("queue", std::nullopt, writer->Last(1)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("queue", {.batch = 1}, Soon()));
  EXPECT_THAT(IdsOf(batch), ElementsAre(1));
  EXPECT_EQ(batch.committed_version, 3);
  EXPECT_THAT(batch.Lags(), ElementsAre(0));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 4, .items_consumed = 1}));
  waiting.join();
  EXPECT_EQ(server.Info("queue").staleness().admitted(), 2u);
}

// Sends three items of three tickets in one request. They have `steps` steps, whose last one is the only one
// of its chunk; the chunk before has four steps of 17 bytes.
absl::Status SendThree(Writer& writer, const std::vector<Ticket>& tickets, std::vector<uint32_t> steps) {
  for (int64_t id = 1; id <= 5; ++id) {
    const std::vector<int64_t> value = {id};
    TANDEM_RETURN_IF_ERROR(writer.Append({value}, {.policy_version = tickets[0].min_version}, Soon()));
  }
  for (size_t i = 0; i < 3; ++i) {
    writer.Hold("queue", tickets[i]);
    TANDEM_RETURN_IF_ERROR(writer.CreateItem("queue", std::nullopt, writer.Last(steps[i]), Soon()));
  }
  return writer.Flush(Soon());
}

TEST(PacedServer, ARefusedItemIsCountedAndTakesNoOtherOfItsRequestWithIt) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TableOptions options = TableOptions::PacedQueue("queue", /*batch=*/3, /*max_lag=*/0);
  options.max_bytes = 80;
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tickets, replay.Admit("queue", {.actor = "actor/0", .count = 3}));
  const auto writer = IdWriter(&replay, "actor/0", /*chunk_steps=*/4);
  EXPECT_THAT(SendThree(*writer, tickets, {1, 2, 1}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_bytes is 80")));
  EXPECT_EQ(writer->pending_items(), 0u);
  EXPECT_EQ(writer->dropped_items(), 1u);
  EXPECT_EQ(server.Info("queue").items(), 2u);
}

TEST(PacedServer, AnItemWhoseTicketHasEndedIsLeftOutOfItsRequestAndCountedByTheTable) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", /*batch=*/3, /*max_lag=*/0)));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tickets, replay.Admit("queue", {.actor = "actor/0", .count = 3}));
  EXPECT_EQ(*replay.ReturnTickets("queue", {tickets[1].id}), 1u);
  const auto writer = IdWriter(&replay, "actor/0", /*chunk_steps=*/4);
  EXPECT_THAT(SendThree(*writer, tickets, {1, 1, 1}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("is not in use")));
  EXPECT_EQ(writer->pending_items(), 0u);
  EXPECT_EQ(writer->dropped_items(), 0u);
  EXPECT_EQ(server.Info("queue").items(), 2u);
  EXPECT_EQ(server.Info("queue").staleness().refused_items(), 1u);
}

TEST(PacedServer, TicketsThatAreReturnedAreGrantedToOthers) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", 1, 0)));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tickets, replay.Admit("queue", {.actor = "actor/0"}));
  EXPECT_EQ(*replay.Renew("queue", {tickets[0].id}), 1u);
  EXPECT_EQ(*replay.ReturnTickets("queue", {tickets[0].id}), 1u);
  EXPECT_EQ(*replay.Renew("queue", {tickets[0].id}), 0u);
  TANDEM_ASSERT_OK(replay.Admit("queue", {.actor = "actor/1"}, Soon()));
  EXPECT_THAT(replay.Commit("queue", {.epoch = 1, .version = 0}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 1 of epoch 1")));
}

// Requests and answers are lost and requests arrive twice: no ticket is lost, each item is used once, and
// none is older than max_lag.
TEST(PacedServer, EveryRolloutIsUsedOnceAndFreshUnderFaults) {
  constexpr uint32_t kBatch = 3, kMaxLag = 1;
  constexpr int64_t kActors = 3, kItems = 40;
  for (const uint64_t seed : {1u, 2u}) {
    ReplaceableServer server({}, [seed](absl::string_view, int64_t index) {
      CounterRandom random(seed, static_cast<uint64_t>(index));
      if (random.Below(4) != 0) return rpc::Fault();
      constexpr rpc::Fault::Kind kKinds[] = {rpc::Fault::Kind::kFailBefore, rpc::Fault::Kind::kFailAfter,
                                             rpc::Fault::Kind::kDuplicate};
      return rpc::Fault{.kind = kKinds[random.Below(3)]};
    });
    RemoteReplay replay(server.channel());
    TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", kBatch, kMaxLag)));
    TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
    std::vector<std::thread> actors;
    for (int64_t a = 0; a < kActors; ++a) {
      actors.emplace_back([&, a] {
        const auto writer = IdWriter(&replay, absl::StrCat("actor/", a), 1);
        for (int64_t i = 0; i < kItems; ++i) {
          TANDEM_EXPECT_OK(RollOut(replay, *writer, absl::StrCat("actor/", a), a * kItems + i));
        }
      });
    }
    std::map<int64_t, int> seen;
    int64_t version = 1;
    for (uint64_t used = 0; used < kActors * kItems; used += kBatch) {
      const auto batch = replay.Sample("queue", {.batch = kBatch}, Soon());
      TANDEM_EXPECT_OK(batch);
      if (!batch.ok()) break;
      for (const int64_t id : IdsOf(*batch)) EXPECT_EQ(++seen[id], 1) << "item " << id;
      for (const int64_t oldest : batch->min_versions) EXPECT_LE(version - oldest, int64_t{kMaxLag});
      TANDEM_EXPECT_OK(
          replay.Commit("queue", {.epoch = 1, .version = ++version, .items_consumed = used + kBatch}));
    }
    for (std::thread& actor : actors) actor.join();
    EXPECT_EQ(seen.size(), static_cast<size_t>(kActors * kItems));
    const v1::ReplayTableInfo info = server.Info("queue");
    EXPECT_EQ(info.staleness().admitted(), static_cast<uint64_t>(kActors * kItems));
    EXPECT_EQ(info.staleness().expired(), 0u);
    EXPECT_EQ(info.removed_stale(), 0u);
    EXPECT_LE(info.staleness().largest_lag(), uint64_t{kMaxLag});
  }
}

TEST(PacedServer, ACheckpointKeepsTheCommittedVersionAndTheItemsOfTickets) {
  tandem::testing::TempDir directory;
  ReplaceableServer server({.checkpoint_directory = directory.path()});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", 2, 0)));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 9, .items_consumed = 100}));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  TANDEM_ASSERT_OK(RollOut(replay, *writer, "actor/0", 1));
  TANDEM_ASSERT_OK(replay.Admit("queue", {.actor = "actor/1"}));
  TANDEM_ASSERT_OK(server.server().SaveCheckpoint());
  server.Restart();
  EXPECT_EQ(server.Info("queue").staleness().version(), 9);
  EXPECT_EQ(server.Info("queue").staleness().running_rollouts(), 0u) << "tickets end with their server";
  TANDEM_ASSERT_OK(RollOut(replay, *writer, "actor/0", 2));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("queue", {.batch = 2}, Soon()));
  EXPECT_THAT(IdsOf(batch), ElementsAre(1, 2));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 10, .items_consumed = 102}));
  TANDEM_ASSERT_OK(replay.Admit("queue", {.actor = "actor/1", .count = 2}, Soon()));
}

// Calls `hook` before it sends the first call of "Admit".
class HookedChannel : public rpc::ForwardingChannel {
 public:
  HookedChannel(std::shared_ptr<rpc::Channel> channel, std::function<void()> hook)
      : ForwardingChannel(std::move(channel)), hook_(std::move(hook)) {}
  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    if (absl::EndsWith(method, "/Admit") && hook_ != nullptr) std::exchange(hook_, nullptr)();
    ForwardingChannel::CallAsync(method, std::move(request), options, std::move(done));
  }

 private:
  std::function<void()> hook_;
};

// The server takes the requests of an actor in their order only.
TEST(PacedServer, ARequestForTicketsIsNotOvertakenByALaterOneOfTheSameActor) {
  ReplaceableServer server;
  std::function<void()> ask;
  RemoteReplay replay(std::make_shared<HookedChannel>(server.channel(), [&] { ask(); }));
  ask = [&] {
    EXPECT_THAT(replay.Admit("queue", {}, absl::InfinitePast()),
                StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("another thread")));
  };
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", /*batch=*/4, /*max_lag=*/0)));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
  TANDEM_EXPECT_OK(replay.Admit("queue", {}, Soon()));
  TANDEM_EXPECT_OK(replay.Admit("queue", {}, Soon()));
}

TEST(PacedServer, ThreadsOfOneClientMayAskForTicketsAtTheSameTime) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", /*batch=*/8, /*max_lag=*/0)));
  TANDEM_ASSERT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 100; ++i) {
        const auto tickets = replay.Admit("queue", {.count = 2}, Soon());
        TANDEM_ASSERT_OK(tickets);
        EXPECT_EQ(*replay.ReturnTickets("queue", {(*tickets)[0].id, (*tickets)[1].id}), 2u);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.Info("queue").staleness().returned(), 800u);
}

TEST(PacedServer, AnAdmissionThatWaitsDoesNotExtendTheDeadlineOfAnother) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", 1, 0)));
  std::thread waiting([&] { TANDEM_EXPECT_OK(replay.Admit("queue", {}, Soon())); });
  const absl::Time deadline = Soon();
  while (server.Info("queue").staleness().waiting_admits() == 0 && MonotonicNow() < deadline) {
    std::this_thread::yield();
  }
  EXPECT_THAT(replay.Admit("queue", {}, MonotonicNow() + absl::Milliseconds(10)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("another thread")));
  TANDEM_EXPECT_OK(replay.Commit("queue", {.epoch = 1, .version = 1}));
  waiting.join();
}

// The checkpoint is older than four commits; without them its items would seem fresh.
TEST(PacedServer, AServerThatGoesOnFromACheckpointGivesNoItemsThatAreTooOldByNow) {
  tandem::testing::TempDir directory;
  ReplaceableServer server({.checkpoint_directory = directory.path()});
  RemoteReplay learner(server.channel()), actor(server.channel());
  TANDEM_ASSERT_OK(learner.CreateTable(TableOptions::PacedQueue("queue", /*batch=*/1, /*max_lag=*/1)));
  TANDEM_ASSERT_OK(learner.Commit("queue", {.epoch = 1, .version = 1}));
  const auto writer = IdWriter(&actor, "actor/0", 1);
  for (int64_t id = 0; id < 2; ++id) TANDEM_ASSERT_OK(RollOut(actor, *writer, "actor/0", id));
  TANDEM_ASSERT_OK(server.server().SaveCheckpoint());
  for (int64_t id = 0; id < 4; ++id) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, learner.Sample("queue", {.batch = 1}, Soon()));
    EXPECT_THAT(IdsOf(batch), ElementsAre(id));
    TANDEM_ASSERT_OK(learner.Commit(
        "queue", {.epoch = 1, .version = id + 2, .items_consumed = static_cast<uint64_t>(id + 1)}));
    TANDEM_ASSERT_OK(RollOut(actor, *writer, "actor/0", id + 2));
  }
  server.Restart();
  EXPECT_EQ(server.Info("queue").items(), 2u);
  EXPECT_THAT(learner.Sample("queue", {.batch = 1}, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_EQ(server.Info("queue").staleness().version(), 5);
  EXPECT_EQ(server.Info("queue").removed_stale(), 2u);
  TANDEM_ASSERT_OK(RollOut(actor, *writer, "actor/0", 6));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, learner.Sample("queue", {.batch = 1}, Soon()));
  EXPECT_THAT(IdsOf(batch), ElementsAre(6));
  EXPECT_THAT(batch.Lags(), ElementsAre(0));
}

TEST(PacedServer, ALearnerThatSamplesCommitsAgainAfterTheServerHasLostItsCommit) {
  ReplaceableServer server;
  RemoteReplay learner(server.channel()), actor(server.channel());
  const TableOptions options = TableOptions::PacedQueue("queue", 1, 0);
  TANDEM_ASSERT_OK(learner.CreateTable(options));
  TANDEM_ASSERT_OK(learner.Commit("queue", {.epoch = 1, .version = 7}));
  EXPECT_FALSE(learner.Sample("queue", {.batch = 1}, absl::InfinitePast()).ok());
  server.Restart();
  TANDEM_ASSERT_OK(actor.CreateTable(options));
  EXPECT_THAT(actor.Admit("queue", {}, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("no version")));
  EXPECT_FALSE(learner.Sample("queue", {.batch = 1}, absl::InfinitePast()).ok());
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto tickets, actor.Admit("queue", {}, Soon()));
  EXPECT_EQ(tickets[0].min_version, 7);
}

// Each of the two kinds of samples waits without an end while the table forgets the commit.
TEST(PacedServer, ASampleThatWaitsEndsAlthoughTheTableHasBeenReset) {
  for (const bool prefetch : {false, true}) {
    ReplaceableServer server;
    RemoteReplay learner(server.channel(), {.call_timeout = absl::Milliseconds(500)});
    RemoteReplay actor(server.channel());
    TANDEM_ASSERT_OK(actor.CreateTable(TableOptions::PacedQueue("queue", 1, 0)));
    const absl::Time deadline = Soon();
    while (!learner.Commit("queue", {.epoch = 1, .version = 7}).ok() && MonotonicNow() < deadline) {
    }
    std::thread sampling([&] {
      if (prefetch) {
        auto sampler = Sampler::Create(&learner, {.name = "learner", .table = "queue", .prefetch = 1});
        TANDEM_ASSERT_OK(sampler);
        TANDEM_EXPECT_OK((*sampler)->Next(Soon()));
      } else {
        TANDEM_EXPECT_OK(learner.Sample("queue", {.batch = 1}, Soon()));
      }
    });
    while (server.Info("queue").waiting_samples() == 0 && MonotonicNow() < deadline) {
      std::this_thread::yield();
    }
    v1::ReplayResetRequest request;
    request.set_table("queue");
    v1::ReplayResetResponse response;
    TANDEM_EXPECT_OK(actor.Call("Reset", request, &response));
    const auto writer = IdWriter(&actor, "actor/0", 1);
    TANDEM_EXPECT_OK(RollOut(actor, *writer, "actor/0", 1));
    sampling.join();
  }
}

}  // namespace
}  // namespace tandem::replay
