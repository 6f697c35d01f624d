// SPDX-License-Identifier: Apache-2.0
#include "replay/server/replay_server.h"

#include <atomic>
#include <cmath>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/sampler.h"
#include "rpc/connect.h"
#include "rpc/security/epoch_gate.h"
#include "rpc/server.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/replay/server/replay_peer.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IdsOf;
using testing::IdWriter;
using testing::ReplaceableServer;
using testing::WriteId;

constexpr auto kInvalidArgument = absl::StatusCode::kInvalidArgument;

TEST(ReplayServer, AStrangerCannotChangeTheTablesOfAJob) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, ReplayServer::Make({}));
  const auto gate =
      std::make_shared<rpc::EpochGate>(rpc::Caller{.member = "replay/0", .token = "0123456789abcdef"});
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto listening, rpc::Server::Start({.gate = gate}, {server->service()}));
  const auto connect = [&](const std::string& token) {
    rpc::ConnectOptions options;
    options.channel.caller.token = token;
    return std::shared_ptr<rpc::Channel>(
        rpc::Connect(absl::StrCat("127.0.0.1:", listening->port()), options).value());
  };
  RemoteReplay member(connect("0123456789abcdef")), stranger(connect(""));
  TANDEM_ASSERT_OK(member.CreateTable(TableOptions::Queue("queue", 10)));
  const auto writer = IdWriter(&member, "actor/0");
  TANDEM_ASSERT_OK(WriteId(*writer, "queue", 7));
  TANDEM_ASSERT_OK(writer->Flush(MonotonicNow() + absl::Seconds(30)));
  const auto refused = StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("tandem key show"));
  v1::ReplayResetRequest reset;
  reset.set_table("queue");
  v1::ReplayResetResponse was_reset;
  EXPECT_THAT(stranger.Call("Reset", reset, &was_reset), refused);
  EXPECT_THAT(stranger.Sample("queue", {.batch = 1}, MonotonicNow() + absl::Seconds(30)).status(), refused);
  EXPECT_THAT(stranger.CreateTable(TableOptions::Queue("mine", 10)), refused);
  v1::ListReplayTablesResponse state;
  TANDEM_EXPECT_OK(stranger.Call("ListTables", v1::ListReplayTablesRequest(), &state));
  ASSERT_EQ(state.tables_size(), 1);
  EXPECT_EQ(state.tables(0).items(), 1u);
  EXPECT_EQ(state.tables(0).total_samples(), 0u);
}

// The limits change while a request waits, so that its last item no longer fits.
TEST(ReplayServer, AnItemRefusedAfterOthersOfItsRequestWereInsertedRepeatsNoneOfThem) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1)));
  const absl::Time deadline = MonotonicNow() + absl::Seconds(30);
  const auto writer = IdWriter(&replay, "actor/0", /*chunk_steps=*/4);
  for (int64_t id = 1; id <= 5; ++id) {
    const std::vector<int64_t> value = {id};
    TANDEM_ASSERT_OK(writer->Append({value}));
  }
  for (const uint32_t steps : {1, 1, 2}) {
    TANDEM_ASSERT_OK(writer->CreateItem("queue", 1.0, writer->Last(steps)));
  }
  std::thread flush([&] {
    EXPECT_THAT(writer->Flush(deadline),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_bytes is 80")));
  });
  while (server.Info("queue").waiting_inserts() == 0 && MonotonicNow() < deadline) std::this_thread::yield();
  v1::ReplaySetLimitsRequest request;
  request.set_table("queue");
  request.set_max_bytes(80);  // the last item refers to chunks of 4 and 1 steps, of 17 bytes each
  v1::ReplaySetLimitsResponse response;
  TANDEM_EXPECT_OK(replay.Call("SetLimits", request, &response));
  for (int i = 0; i < 2; ++i) TANDEM_EXPECT_OK(replay.Sample("queue", {.batch = 1}, deadline));
  flush.join();
  EXPECT_EQ(writer->pending_items(), 0u);
  EXPECT_EQ(writer->dropped_items(), 1u);
  EXPECT_EQ(server.Info("queue").total_inserts(), 2u);
}

TEST(ReplayServer, GivesBackWhatAWriterHasWritten) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 100)));
  auto writer = Writer::Create(&replay, {{.name = "x", .dtype = DType::kI32}, {.name = "pair", .shape = {2}}},
                               {.name = "actor/0", .chunk_steps = 3});
  TANDEM_ASSERT_OK(writer);
  for (int32_t i = 0; i < 8; ++i) {
    const std::vector<int32_t> x = {i};
    const std::vector<float> pair = {static_cast<float>(i), 0.5f};
    TANDEM_ASSERT_OK((*writer)->Append({x, pair}, {.policy_version = i}));
  }
  TANDEM_ASSERT_OK((*writer)->CreateItem("queue", 2.5, (*writer)->Last(4)));
  TANDEM_ASSERT_OK((*writer)->CreateItem(
      "queue", std::nullopt, {{"x", "x", (*writer)->Last(2)}, {"pair", "pair", (*writer)->Last(1, 5)}}));
  TANDEM_ASSERT_OK((*writer)->Flush());
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("queue", {.batch = 2}));
  ASSERT_EQ(batch.size(), 2u);
  EXPECT_THAT(batch.Find("x")->lengths, ElementsAre(4, 2));
  EXPECT_THAT(batch.Find("x")->values<int32_t>(), ElementsAre(4, 5, 6, 7, 6, 7));
  EXPECT_THAT(batch.Find("pair")->lengths, ElementsAre(4, 1));
  EXPECT_THAT(batch.Find("pair")->values<float>(), ElementsAre(4, 0.5, 5, 0.5, 6, 0.5, 7, 0.5, 2, 0.5));
  EXPECT_THAT(batch.priorities, ElementsAre(2.5, 2.5));
  EXPECT_THAT(batch.min_versions, ElementsAre(4, 2));
  EXPECT_THAT(batch.max_versions, ElementsAre(7, 7));
  EXPECT_EQ(server.Info("queue").last_inserter(), "actor/0");
}

TEST(ReplayServer, AWriterSendsEachChunkOnceAndItemsShareIt) {
  std::atomic<size_t> inserts{0};
  ReplaceableServer server({}, [&](absl::string_view method, int64_t) {
    if (absl::StrContains(method, "Insert")) ++inserts;
    return rpc::Fault();
  });
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform("replay", 1000, 1)));
  const auto writer = IdWriter(&replay, "actor/0", /*chunk_steps=*/4);
  for (int64_t id = 0; id < 40; ++id) TANDEM_ASSERT_OK(WriteId(*writer, "replay", id));
  TANDEM_ASSERT_OK(writer->Flush());
  EXPECT_EQ(server.Info("replay").items(), 40u);
  EXPECT_EQ(server.Info("replay").bytes(), 40u * (8 + 1 + 8));
  EXPECT_GE(server.server().State().chunk_bytes(), 40u * (8 + 1 + 8));
  EXPECT_LE(inserts, 25u);
}

TEST(ReplayServer, CallsThatWaitHoldNoThreadAndEndWithTheReason) {
  ReplaceableServer server;  // the loopback has one thread, so a handler that blocks would block all calls
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 2)));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  const absl::Time soon = absl::InfinitePast();
  TANDEM_ASSERT_OK(WriteId(*writer, "queue", 1, soon));
  TANDEM_ASSERT_OK(WriteId(*writer, "queue", 2, soon));
  EXPECT_THAT(WriteId(*writer, "queue", 3, soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("2 inserts x 1 - 0 samples reaches max_diff 2")));
  std::thread waiting([&] { TANDEM_EXPECT_OK(writer->Flush()); });
  while (server.server().State().parked_calls() == 0) std::this_thread::yield();
  EXPECT_GT(server.server().State().parked_bytes(), 0u);
  EXPECT_EQ(server.Info("queue").waiting_inserts(), 1u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("queue", {.batch = 2}));
  EXPECT_THAT(IdsOf(batch), ElementsAre(1, 2));
  waiting.join();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch last, replay.Sample("queue", {.batch = 1}));
  EXPECT_THAT(IdsOf(last), ElementsAre(3));
  EXPECT_THAT(replay.Sample("queue", {.batch = 1}, soon),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("gives no samples: it holds 0 items")));
  EXPECT_THAT(replay.Sample("queue", {.batch = 1}, MonotonicNow() + absl::Milliseconds(60)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  // The server ends its part of the last call by its own timer.
  while (server.server().State().parked_calls() > 0) std::this_thread::yield();
  while (server.server().State().parked_bytes() > 0) std::this_thread::yield();
}

TEST(ReplayServer, RequestsThatWaitBeyondTheMemoryForThemAreRefused) {
  ReplaceableServer server({.max_parked_bytes = 10});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1)));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  TANDEM_ASSERT_OK(WriteId(*writer, "queue", 1));
  EXPECT_THAT(WriteId(*writer, "queue", 2, MonotonicNow() + absl::Milliseconds(300)),
              ::testing::Not(tandem::testing::IsOk()));
  EXPECT_EQ(server.server().State().parked_calls(), 0u);
  EXPECT_EQ(server.Info("queue").items(), 1u);
}

TEST(ReplayServer, ChunksBeyondTheMemoryLimitAreRefused) {
  ReplaceableServer server({.max_memory_bytes = 100});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform("replay", 1000, 1)));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  absl::Status status;
  for (int64_t id = 0; status.ok() && id < 100; ++id) status = WriteId(*writer, "replay", id);
  EXPECT_THAT(status,
              StatusIs(absl::StatusCode::kResourceExhausted,
                       ::testing::AllOf(HasSubstr("may hold 100"), HasSubstr("replay/0, table 'replay'"))));
  EXPECT_LE(server.server().State().chunk_bytes(), 100u);
}

TEST(ReplayServer, ARepeatedSampleGetsTheSameItems) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 100)));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 10; ++id) TANDEM_ASSERT_OK(WriteId(*writer, "queue", id));
  const auto sample = [&](uint64_t sequence, uint64_t acknowledged, uint64_t incarnation = 5) {
    absl::Notification done;
    absl::StatusOr<Batch> batch;
    replay.StartSample("queue", {.batch = 2},
                       {.sampler = "learner",
                        .incarnation = incarnation,
                        .sequence = sequence,
                        .acknowledged = acknowledged},
                       absl::ZeroDuration(), {}, [&](absl::StatusOr<Batch> result) {
                         batch = std::move(result);
                         done.Notify();
                       });
    done.WaitForNotification();
    return batch;
  };
  EXPECT_THAT(IdsOf(*sample(1, 0)), ElementsAre(0, 1));
  EXPECT_THAT(IdsOf(*sample(2, 0)), ElementsAre(2, 3));
  EXPECT_THAT(IdsOf(*sample(1, 0)), ElementsAre(0, 1));
  EXPECT_THAT(IdsOf(*sample(2, 1)), ElementsAre(2, 3));
  EXPECT_THAT(sample(1, 1), StatusIs(kInvalidArgument, HasSubstr("sequence 1 and acknowledged 1")));
  EXPECT_THAT(IdsOf(*sample(1, 0, 6)), ElementsAre(4, 5)) << "a sampler that has started again";
  EXPECT_THAT(sample(3, 2, 5), StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("replaced")));
}

// The server draws items whose answer does not arrive before the deadline.
TEST(ReplayServer, ASampleThatEndsWithoutItsAnswerLosesNoItems) {
  std::atomic<int> samples{0};
  ReplaceableServer server({}, [&](absl::string_view method, int64_t) {
    const bool first = absl::StrContains(method, "Sample") && samples++ == 0;
    return rpc::Fault{.kind = first ? rpc::Fault::Kind::kNeverRespond : rpc::Fault::Kind::kNone};
  });
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 10)));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 4; ++id) TANDEM_ASSERT_OK(WriteId(*writer, "queue", id));
  EXPECT_THAT(replay.Sample("queue", {.batch = 2}, MonotonicNow() + absl::Milliseconds(100)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch again, replay.Sample("queue", {.batch = 2}));
  EXPECT_THAT(IdsOf(again), ElementsAre(0, 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch rest, replay.Sample("queue", {.batch = 2}));
  EXPECT_THAT(IdsOf(rest), ElementsAre(2, 3));
}

TEST(ReplayServer, ACallThatMayNotWaitEndsThoughTheServerIsSilent) {
  ReplaceableServer server({}, [](absl::string_view method, int64_t) -> rpc::Fault {
    if (absl::EndsWith(method, "/CreateTable")) return {};
    return {.kind = rpc::Fault::Kind::kNeverRespond};
  });
  RemoteReplay replay(server.channel(),
                      {.call_timeout = absl::Minutes(10), .round_trip = absl::Milliseconds(20)});
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::PacedQueue("queue", /*batch=*/1, /*max_lag=*/1)));
  EXPECT_THAT(replay.Sample("queue", {.batch = 1}, MonotonicNow()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(replay.Admit("queue", {.actor = "actor/0", .count = 1}, MonotonicNow()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  const auto writer = testing::IdWriter(&replay, "actor/0", /*chunk_steps=*/1);
  EXPECT_THAT(testing::WriteId(*writer, "queue", 1, MonotonicNow()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Long responses arrive in chunks over gRPC, and are read in place over shared memory.
TEST(ReplayServer, LongItemsOfSeveralColumnsArriveOverTheNetwork) {
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto server, ReplayServer::Make({}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<rpc::Server> listening,
                              rpc::Server::Start({}, {server->service()}));
  for (const char* const transport : {"grpc", "auto"}) {
    rpc::ConnectOptions options;
    options.transport = transport;
    TANDEM_ASSERT_OK_AND_ASSIGN(auto channel,
                                rpc::Connect(absl::StrCat("127.0.0.1:", listening->port()), options));
    RemoteReplay replay(std::move(channel));
    const std::string table = absl::StrCat("table/", transport);
    TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform(table, 100, 1)));
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const auto writer,
        Writer::Create(&replay, {{.name = "image", .dtype = DType::kI32, .shape = {7001}}, {.name = "id"}},
                       {.name = table, .chunk_steps = 3, .history_steps = 4}));
    std::vector<int32_t> image(7001);
    for (int id = 0; id < 20; ++id) {
      for (size_t i = 0; i < image.size(); ++i) image[i] = id * 10'000 + static_cast<int32_t>(i);
      const std::vector<float> value = {static_cast<float>(id)};
      TANDEM_ASSERT_OK(writer->Append({image, value}));
      if (id == 0) continue;
      TANDEM_ASSERT_OK(writer->CreateItem(table, std::nullopt, writer->Last(2)));
    }
    TANDEM_ASSERT_OK(writer->Flush());
    TANDEM_ASSERT_OK_AND_ASSIGN(
        const auto sampler,
        Sampler::Create(&replay, {.name = "learner", .table = table, .size = {.batch = 64}}));
    for (int round = 0; round < 4; ++round) {
      TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, sampler->Next(MonotonicNow() + absl::Seconds(60)));
      const auto images = batch.Find("image")->values<int32_t>();
      const auto ids = batch.Find("id")->values<float>();
      ASSERT_EQ(images.size(), 64u * 2 * 7001);
      ASSERT_EQ(ids.size(), 128u);
      for (size_t i = 0; i < images.size(); ++i) {
        ASSERT_EQ(images[i], static_cast<int32_t>(ids[i / 7001]) * 10'000 + static_cast<int32_t>(i % 7001));
      }
      for (size_t item = 0; item < 64; ++item) EXPECT_EQ(ids[2 * item] + 1, ids[2 * item + 1]);
    }
  }
  server->Stop();
  listening->Shutdown(absl::Seconds(1));
}

TEST(ReplayServer, APrefetchingSamplerGetsEveryItemOfAQueueOnce) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 8)));
  constexpr int64_t kItems = 300;
  std::thread writing([&] {
    const auto writer = IdWriter(&replay, "actor/0", 3);
    for (int64_t id = 0; id < kItems; ++id) TANDEM_EXPECT_OK(WriteId(*writer, "queue", id));
    TANDEM_EXPECT_OK(writer->Flush());
  });
  auto sampler =
      Sampler::Create(&replay, {.name = "learner", .table = "queue", .size = {.batch = 3}, .prefetch = 4});
  TANDEM_ASSERT_OK(sampler);
  for (int64_t id = 0; id < kItems; id += 3) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, (*sampler)->Next());
    EXPECT_THAT(IdsOf(batch), ElementsAre(id, id + 1, id + 2));
  }
  writing.join();
  EXPECT_THAT((*sampler)->Next(MonotonicNow() + absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
}

// Answers are lost, requests are lost and requests arrive twice; every item must be sampled exactly once.
TEST(ReplayServer, TheLedgerClosesUnderFaults) {
  for (const uint64_t seed : {1u, 2u, 3u}) {
    std::atomic<int> faults{0};
    ReplaceableServer server({}, [seed, &faults](absl::string_view method, int64_t index) {
      CounterRandom random(seed, static_cast<uint64_t>(index));
      const bool covered = absl::StrContains(method, "Insert") || absl::StrContains(method, "Sample");
      if (!covered || random.Below(3) != 0) return rpc::Fault();
      ++faults;
      constexpr rpc::Fault::Kind kKinds[] = {rpc::Fault::Kind::kFailBefore, rpc::Fault::Kind::kFailAfter,
                                             rpc::Fault::Kind::kDuplicate};
      return rpc::Fault{.kind = kKinds[random.Below(3)]};
    });
    RemoteReplay replay(server.channel());
    TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 5)));
    constexpr int64_t kWriters = 3, kItems = 60;
    std::vector<std::thread> threads;
    for (int64_t w = 0; w < kWriters; ++w) {
      threads.emplace_back([&, w] {
        const auto writer = IdWriter(&replay, absl::StrCat("actor/", w), 2);
        for (int64_t i = 0; i < kItems; ++i) TANDEM_EXPECT_OK(WriteId(*writer, "queue", w * kItems + i));
        TANDEM_EXPECT_OK(writer->Flush());
      });
    }
    std::map<int64_t, int> seen;
    auto sampler =
        Sampler::Create(&replay, {.name = "learner", .table = "queue", .size = {.batch = 4, .min_batch = 1}});
    TANDEM_ASSERT_OK(sampler);
    while (seen.size() < kWriters * kItems) {
      const auto batch = (*sampler)->Next();
      TANDEM_ASSERT_OK(batch);
      for (const int64_t id : IdsOf(*batch)) EXPECT_EQ(++seen[id], 1) << "item " << id;
    }
    for (std::thread& thread : threads) thread.join();
    const v1::ReplayTableInfo info = server.Info("queue");
    EXPECT_EQ(info.total_inserts(), static_cast<uint64_t>(kWriters * kItems));
    EXPECT_EQ(info.consumed(), info.total_inserts());
    EXPECT_EQ(info.items(), 0u);
    EXPECT_EQ(info.lost_items(), 0u);
    EXPECT_GT(faults, 20);
  }
}

TEST(ReplayServer, AServerThatStartsAgainGetsTheChunksAgainAndCountsWhatWasLost) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  const TableOptions options = TableOptions::Uniform("replay", 1000, 1);
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 10; ++id) TANDEM_ASSERT_OK(WriteId(*writer, "replay", id));
  server.Restart();
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  // This item refers to chunks that only the earlier server had.
  TANDEM_ASSERT_OK(writer->CreateItem("replay", 1.0, writer->Last(8)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("replay", {.batch = 1}));
  EXPECT_THAT(IdsOf(batch), ElementsAre(2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(server.Info("replay").lost_items(), 10u);
  v1::ReplayExplainRequest request;
  request.set_table("replay");
  v1::ReplayExplainResponse reasons;
  TANDEM_ASSERT_OK(replay.Call("Explain", request, &reasons));
  EXPECT_THAT(reasons.reasons(), ElementsAre("table 'replay' takes inserts", "table 'replay' gives samples",
                                             HasSubstr("10 items were acknowledged and then lost")));
}

TEST(ReplayServer, PrioritiesForItemsOfAServerThatIsGoneMeetNoItemOfTheNextOne) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  const TableOptions options = TableOptions::Prioritized("replay", 10, 1);
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  const auto first = IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 10; ++id) TANDEM_ASSERT_OK(WriteId(*first, "replay", id));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("replay", {.batch = 8}));
  server.Restart();
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  const auto second = IdWriter(&replay, "actor/1", 1);
  for (int64_t id = 0; id < 10; ++id) TANDEM_ASSERT_OK(WriteId(*second, "replay", id));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t changed,
                              replay.UpdatePriorities("replay", batch.keys, std::vector<double>(8, 1000.0)));
  EXPECT_EQ(changed, 0u);
  EXPECT_EQ(server.Info("replay").missed_priority_updates(), 8u);
}

TEST(ReplayServer, LimitsChangeWhileCallsWait) {
  ReplaceableServer server;
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1)));
  const auto writer = IdWriter(&replay, "actor/0", 1);
  TANDEM_ASSERT_OK(WriteId(*writer, "queue", 1));
  std::thread waiting([&] { TANDEM_EXPECT_OK(WriteId(*writer, "queue", 2)); });
  while (server.server().State().parked_calls() == 0) std::this_thread::yield();
  v1::ReplaySetLimitsRequest request;
  request.set_table("queue");
  request.set_max_diff(0);
  v1::ReplaySetLimitsResponse response;
  EXPECT_THAT(replay.Call("SetLimits", request, &response),
              StatusIs(kInvalidArgument, HasSubstr("at least 1 wide")));
  request.set_max_diff(5);
  request.set_max_items(5);
  TANDEM_ASSERT_OK(replay.Call("SetLimits", request, &response));
  waiting.join();
  EXPECT_EQ(server.Info("queue").items(), 2u);
  EXPECT_EQ(response.table().options().limit().max_diff(), 5);

  v1::ReplayPeekRequest peek;
  peek.set_table("queue");
  peek.set_count(1);
  v1::ReplayPeekResponse items;
  TANDEM_ASSERT_OK(replay.Call("Peek", peek, &items));
  ASSERT_EQ(items.items_size(), 1);
  EXPECT_EQ(items.items(0).serial(), 1u);
  EXPECT_THAT(items.items(0).steps(), ElementsAre(1));
  peek.set_next(items.next());
  TANDEM_ASSERT_OK(replay.Call("Peek", peek, &items));
  EXPECT_EQ(items.items(0).serial(), 2u);
  EXPECT_EQ(items.next(), 0u);
  peek.set_count(0);
  EXPECT_THAT(replay.Call("Peek", peek, &items), StatusIs(kInvalidArgument, HasSubstr("[1, 1000]")));

  v1::ReplayResetRequest reset;
  reset.set_table("queue");
  v1::ReplayResetResponse removed;
  TANDEM_ASSERT_OK(replay.Call("Reset", reset, &removed));
  EXPECT_EQ(removed.removed(), 2u);
}

// Requests that no client of this program makes.
class WrongRequests : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK(replay_.CreateTable(TableOptions::Prioritized("replay", 10, 1)));
    request_.set_writer("stranger");
    request_.set_incarnation(1);
    request_.set_sequence(1);
    request_.set_table("replay");
    v1::ReplayColumn& column = *request_.add_step_columns();
    column.set_name("id");
    column.set_dtype(static_cast<uint32_t>(DType::kI64));
    request_.add_item_columns()->set_name("id");
    v1::ReplayChunk& chunk = *request_.add_chunks();
    chunk.set_key(1);
    chunk.set_steps(2);
    request_.add_chunk_keys(1);
    v1::ReplayItem& item = *request_.add_items();
    for (const uint32_t number : {0, 0, 2}) item.add_slices(number);
    item.add_slices_end(1);
  }
  absl::Status Send(const v1::ReplayInsertRequest& request, size_t payload = 16) {
    return server_.channel()
        ->Call("/tandem.v1.Replay/Insert", rpc::EncodeBulk(request, Bytes(std::string(payload, '\0'))), {})
        .status();
  }

  ReplaceableServer server_;
  RemoteReplay replay_{server_.channel()};
  v1::ReplayInsertRequest request_;  // a correct one
};

TEST_F(WrongRequests, ACorrectOneIsTaken) {
  TANDEM_EXPECT_OK(Send(request_));
  EXPECT_EQ(server_.Info("replay").items(), 1u);
}

TEST_F(WrongRequests, AreRefusedAndLeaveTheServerAsItWas) {
  const auto expect_refused = [&](const std::function<void(v1::ReplayInsertRequest&)>& spoil,
                                  const std::string& why, absl::StatusCode code = kInvalidArgument,
                                  size_t payload = 16) {
    v1::ReplayInsertRequest request = request_;
    spoil(request);
    EXPECT_THAT(Send(request, payload), StatusIs(code, HasSubstr(why)));
  };
  expect_refused([](auto& r) { r.set_table("none"); }, "no table 'none'; there are: replay",
                 absl::StatusCode::kNotFound);
  expect_refused([](auto& r) { r.set_sequence(0); }, "count from 1");
  expect_refused([](auto& r) { r.mutable_step_columns(0)->set_dtype(99); }, "dtype 99");
  expect_refused([](auto& r) { r.mutable_step_columns(0)->add_shape(-5); }, "at least 1");
  expect_refused([](auto& r) { r.mutable_step_columns(0)->add_shape(int64_t{1} << 60); }, "more than");
  expect_refused([](auto& r) { r.clear_step_columns(); }, "0 columns");
  expect_refused([](auto& r) { r.mutable_item_columns(0)->set_source(7); }, "column 7 of the steps");
  expect_refused([](auto& r) { r.clear_item_columns(); }, "0 columns");
  expect_refused([](auto& r) { r.mutable_chunks(0)->set_steps(0xffffffff); }, "the payload has 16");
  expect_refused([](auto& r) { r.mutable_chunks(0)->set_steps(0); }, "has 0 steps");
  expect_refused([](auto&) {}, "1 bytes that belong to no chunk", kInvalidArgument, 17);
  expect_refused([](auto&) {}, "the payload has 15 bytes left", kInvalidArgument, 15);
  expect_refused([](auto& r) { r.set_chunk_keys(0, 9); }, "chunk 9 is not here",
                 absl::StatusCode::kFailedPrecondition);
  expect_refused([](auto& r) { r.mutable_items(0)->set_slices(0, 5); }, "chunk 5 of 1");
  expect_refused([](auto& r) { r.mutable_items(0)->set_slices(1, 0xffffffff); }, "of a chunk of 2 steps");
  expect_refused([](auto& r) { r.mutable_items(0)->set_slices(2, 0); }, "of a chunk of 2 steps");
  expect_refused([](auto& r) { r.mutable_items(0)->add_slices(1); }, "4 numbers for its slices");
  expect_refused([](auto& r) { r.mutable_items(0)->set_slices_end(0, 2); }, "has no steps");
  expect_refused([](auto& r) { r.mutable_items(0)->clear_slices_end(); }, "0 columns");
  expect_refused([](auto& r) { r.mutable_items(0)->set_priority(std::nan("")); }, "priority nan");
  expect_refused([](auto& r) { r.mutable_items(0)->set_priority(-1); }, "priority -1");
  expect_refused([](auto& r) { r.mutable_items(0)->set_priority(HUGE_VAL); }, "priority inf");
  expect_refused([](auto& r) { r.mutable_items(0)->set_min_version(3); }, "smallest policy version");
  expect_refused([](auto& r) { r.set_writer(std::string(1000, 'x')); }, "at most 256");
  EXPECT_THAT(server_.channel()->Call("/tandem.v1.Replay/Insert", Bytes(std::string("\xff\xff\xff")), {}),
              StatusIs(kInvalidArgument));
  EXPECT_EQ(server_.Info("replay").total_inserts(), 0u);
  EXPECT_EQ(server_.server().State().parked_calls(), 0u);
  TANDEM_EXPECT_OK(Send(request_));
  EXPECT_EQ(server_.Info("replay").items(), 1u);
}

TEST_F(WrongRequests, ATableWithWrongOptionsIsRefused) {
  v1::CreateReplayTableRequest request;
  v1::CreateReplayTableResponse response;
  *request.mutable_options() = server_.Info("replay").options();
  request.mutable_options()->set_name("other");
  request.mutable_options()->mutable_limit()->set_min_diff(std::nan(""));
  EXPECT_THAT(replay_.Call("CreateTable", request, &response),
              StatusIs(kInvalidArgument, HasSubstr("window")));
  request.mutable_options()->mutable_limit()->clear_min_diff();
  request.mutable_options()->mutable_sampler()->set_kind(static_cast<v1::ReplaySelector::Kind>(77));
  EXPECT_THAT(replay_.Call("CreateTable", request, &response),
              StatusIs(kInvalidArgument, HasSubstr("unknown selector 77")));
  EXPECT_THAT(replay_.Call("CreateTable", v1::CreateReplayTableRequest(), &response),
              StatusIs(kInvalidArgument));
}

}  // namespace
}  // namespace tandem::replay
