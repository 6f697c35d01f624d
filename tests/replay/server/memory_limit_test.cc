// SPDX-License-Identifier: Apache-2.0
// Inserts and samples at the limits of a server's memory and messages.

#include <atomic>
#include <stop_token>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/may_repeat.h"
#include "tests/replay/server/replay_peer.h"
#include "tests/testing/status_matchers.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// More chunks of one step fit than a writer keeps for later items.
constexpr uint64_t kMemory = 5000;

absl::Time InHalfAMinute() { return MonotonicNow() + absl::Seconds(30); }

// Waits until an insert of another thread waits for memory.
void AwaitMemoryWait(testing::ReplaceableServer& server) {
  const absl::Time deadline = InHalfAMinute();
  while (server.server().State().memory_waits() == 0 && MonotonicNow() < deadline) std::this_thread::yield();
  ASSERT_GT(server.server().State().memory_waits(), 0u);
}

TEST(MemoryLimit, InsertsIntoAQueueWaitForMemoryAndNoneIsDropped) {
  constexpr int64_t kItems = 100;
  std::atomic<int64_t> inserts{0};
  testing::ReplaceableServer server({.max_memory_bytes = kMemory}, [&](absl::string_view method, int64_t) {
    if (absl::EndsWith(method, "Insert")) ++inserts;
    return rpc::Fault();
  });
  RemoteReplay replay(server.channel()), actor(server.channel(), {.call_timeout = absl::Milliseconds(100)});
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  const auto writer = testing::IdWriter(&actor, "actor/0", 1);
  std::thread writing([&] {
    for (int64_t id = 0; id < kItems; ++id) {
      TANDEM_EXPECT_OK(testing::WriteId(*writer, "queue", id, InHalfAMinute()));
    }
  });
  AwaitMemoryWait(server);
  // The call that waits ends before the insert's deadline and is made again.
  const int64_t more = inserts + 3;
  for (const absl::Time end = InHalfAMinute(); inserts < more && MonotonicNow() < end;) {
    std::this_thread::yield();
  }
  AwaitMemoryWait(server);
  for (int64_t id = 0; id < kItems; ++id) {
    const auto batch = replay.Sample("queue", {.batch = 1}, InHalfAMinute());
    TANDEM_EXPECT_OK(batch);
    if (!batch.ok()) break;
    EXPECT_THAT(testing::IdsOf(*batch), ElementsAre(id));
    EXPECT_LE(server.server().State().chunk_bytes(), kMemory);
  }
  writing.join();
  EXPECT_EQ(writer->dropped_items(), 0u);
  EXPECT_EQ(server.server().State().memory_refusals(), 0u);
  EXPECT_EQ(server.server().State().memory_waits(), 0u);
}

TEST(MemoryLimit, WhatWaitsForMemoryIsReported) {
  testing::ReplaceableServer server({.max_memory_bytes = kMemory});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  std::thread writing([&] {
    for (int64_t id = 0; id < 50; ++id) {
      TANDEM_EXPECT_OK(testing::WriteId(*writer, "queue", id, InHalfAMinute()));
    }
  });
  AwaitMemoryWait(server);
  v1::ReplayExplainRequest request;
  request.set_table("queue");
  v1::ReplayExplainResponse why;
  TANDEM_EXPECT_OK(replay.Call("Explain", request, &why));
  EXPECT_THAT(why.reasons(), Contains(HasSubstr("that wait for memory: 1; chunks hold")));
  for (int i = 0; i < 50; ++i) TANDEM_EXPECT_OK(replay.Sample("queue", {.batch = 1}, InHalfAMinute()));
  writing.join();
}

TEST(MemoryLimit, AnInsertThatFindsNoMemoryEndsWithTheReasonAndGoesOnLater) {
  testing::ReplaceableServer server({.max_memory_bytes = kMemory});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  absl::Status status;
  int64_t written = 0;
  while (status.ok()) status = testing::WriteId(*writer, "queue", written++, absl::InfinitePast());
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("(--max-memory)")));
  EXPECT_EQ(writer->pending_items(), 1u);
  for (int64_t id = 0; id < written; ++id) {
    if (id == written - 1) {
      TANDEM_ASSERT_OK(writer->Flush(InHalfAMinute()));
    }
    TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("queue", {.batch = 1}, InHalfAMinute()));
    EXPECT_THAT(testing::IdsOf(batch), ElementsAre(id));
  }
  EXPECT_EQ(writer->dropped_items(), 0u);
}

// Waiting would not help: no chunk leaves, or the request alone is too large.
TEST(MemoryLimit, AnInsertThatNoSampleCanMakeRoomForIsRefusedAndCounted) {
  testing::ReplaceableServer server({.max_memory_bytes = kMemory});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform("replay", 1000, 1)));
  const auto large = testing::IdWriter(&replay, "actor/0", /*chunk_steps=*/300);
  for (int64_t id = 0; id < 299; ++id) {
    const std::vector<int64_t> value = {id};
    TANDEM_ASSERT_OK(large->Append({value}));
  }
  EXPECT_THAT(testing::WriteId(*large, "queue", 299, InHalfAMinute()),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("may hold 5000")));
  EXPECT_EQ(large->dropped_items(), 1u);
  EXPECT_EQ(server.server().State().memory_refusals(), 1u);
  const auto writer = testing::IdWriter(&replay, "actor/1", 1);
  absl::Status status;
  for (int64_t id = 0; status.ok() && id < 100; ++id) {
    status = testing::WriteId(*writer, "replay", id, InHalfAMinute());
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("may hold 5000")));
  EXPECT_EQ(writer->dropped_items(), 1u);
  EXPECT_EQ(server.server().State().memory_refusals(), 2u);
}

// Writes items into table "queue" until one is refused. Returns why.
absl::Status WriteUntilRefused(RemoteReplay& replay) {
  const auto writer = testing::IdWriter(&replay, "actor/refused", 1);
  absl::Status status;
  for (int64_t id = 0; status.ok() && id < 100; ++id) {
    status = testing::WriteId(*writer, "queue", id, InHalfAMinute());
  }
  EXPECT_EQ(writer->dropped_items(), 1u);
  return status;
}

TEST(MemoryLimit, AnInsertIsRefusedWhileSamplesWaitForMoreItemsThanTheMemoryHolds) {
  for (const bool waits : {true, false}) {
    testing::ReplaceableServer server(
        {.max_memory_bytes = kMemory, .memory_patience = absl::Milliseconds(20)});
    RemoteReplay replay(server.channel());
    TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
    std::stop_source cancelled;
    absl::Notification sampled;
    // A learner that asks again and again does not wait at each moment.
    replay.StartSample("queue", {.batch = 200}, {}, waits ? absl::Seconds(30) : absl::ZeroDuration(),
                       cancelled.get_token(), [&](const absl::StatusOr<Batch>& batch) {
                         EXPECT_FALSE(batch.ok());
                         sampled.Notify();
                       });
    if (!waits) sampled.WaitForNotification();
    EXPECT_THAT(WriteUntilRefused(replay),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("samples wait for more items")));
    EXPECT_EQ(server.server().State().memory_refusals(), 1u);
    cancelled.request_stop();
    sampled.WaitForNotification();
  }
}

TEST(MemoryLimit, AnInsertIntoAQueueIsRefusedWhileATableWithoutRoomHoldsTheMemory) {
  testing::ReplaceableServer server({.max_memory_bytes = kMemory, .memory_patience = absl::Milliseconds(20)});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform("replay", 1000, 1)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  absl::Status status;
  for (int64_t id = 0; status.ok() && id < 100; ++id) {
    status = testing::WriteId(*writer, "replay", id, InHalfAMinute());
  }
  // An answer that is kept holds no memory of its own: the items are in the table.
  TANDEM_ASSERT_OK(replay.Sample("replay", {.batch = 1}, InHalfAMinute()));
  EXPECT_THAT(WriteUntilRefused(replay),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("table 'queue'")));
}

TEST(MemoryLimit, AnInsertWaitsWhileAnAnswerThatIsNotAcknowledgedHoldsTheMemory) {
  testing::ReplaceableServer server({.max_memory_bytes = kMemory, .memory_patience = absl::Milliseconds(20)});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  absl::Status status;
  uint32_t written = 0;
  for (; status.ok(); ++written) status = testing::WriteId(*writer, "queue", written, absl::InfinitePast());
  TANDEM_ASSERT_OK(replay.Sample("queue", {.batch = written - 1}, InHalfAMinute()));
  EXPECT_THAT(writer->Flush(MonotonicNow() + absl::Milliseconds(200)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(replay.Sample("queue", {.batch = 2}, absl::InfinitePast()),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  TANDEM_EXPECT_OK(writer->Flush(InHalfAMinute()));
  EXPECT_EQ(writer->dropped_items(), 0u);
}

TEST(MemoryLimit, AServerThatStopsEndsTheInsertsThatWaitForMemory) {
  testing::ReplaceableServer server({.max_memory_bytes = kMemory});
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 1000)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  std::atomic<bool> over{false};
  std::thread writing([&] {
    const auto soon = [] { return MonotonicNow() + absl::Milliseconds(300); };
    for (int64_t id = 0; !over; ++id) {
      absl::Status status = testing::WriteId(*writer, "queue", id, soon());
      while (MayRepeat(status) && !over) status = writer->Flush(soon());
      EXPECT_TRUE(status.ok() || MayRepeat(status)) << status;
    }
  });
  AwaitMemoryWait(server);
  server.server().Stop();
  EXPECT_EQ(server.server().State().memory_waits(), 0u);
  over = true;
  writing.join();
  EXPECT_EQ(server.server().State().memory_waits(), 0u);
  EXPECT_EQ(writer->pending_items(), 1u);
  EXPECT_EQ(writer->dropped_items(), 0u);
}

TEST(MemoryLimit, ABatchThatIsLargerThanAResponseIsRefusedBeforeItIsDrawn) {
  testing::ReplaceableServer server({.max_message_bytes = 800});  // a batch may have half of it: 50 items
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Queue("queue", 100)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 60; ++id) TANDEM_ASSERT_OK(testing::WriteId(*writer, "queue", id));
  EXPECT_THAT(
      replay.Sample("queue", {.batch = 51}, InHalfAMinute()),
      StatusIs(absl::StatusCode::kResourceExhausted,
               HasSubstr("an item has up to 8 bytes, and a response may have 400: ask for at most 50")));
  EXPECT_EQ(server.Info("queue").total_samples(), 0u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch part, replay.Sample("queue", {.batch = 60, .min_batch = 1}));
  ASSERT_EQ(part.size(), 50u);
  EXPECT_EQ(testing::IdsOf(part)[0], 0);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch rest, replay.Sample("queue", {.batch = 10}));
  EXPECT_EQ(testing::IdsOf(rest)[0], 50);
  // An item that no response could hold would stay in the queue for ever.
  Window window = writer->Last(1);
  window.repeat_first = 50;
  EXPECT_THAT(writer->CreateItem("queue", 1.0, window),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("values have 408 bytes, and the response to a sample may have 400")));
  EXPECT_EQ(writer->dropped_items(), 1u);
  EXPECT_EQ(server.Info("queue").items(), 0u);
}

}  // namespace
}  // namespace tandem::replay
