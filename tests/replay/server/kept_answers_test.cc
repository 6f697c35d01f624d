// SPDX-License-Identifier: Apache-2.0
// What a server keeps of its clients, and what remains of clients that were replaced or are gone.

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "replay/client/sampler.h"
#include "replay/client/sharded_sampler.h"
#include "replay/server/parked_calls.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/replay/server/replay_peer.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::replay {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::IdsOf;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

absl::Time Later() { return MonotonicNow() + absl::Seconds(30); }

// A call of Sample with an identity of its own.
struct Asked {
  absl::Notification done;
  absl::StatusOr<Batch> batch;
};
std::shared_ptr<Asked> Ask(RemoteReplay& replay, const RemoteReplay::SampleId& id, uint32_t batch = 2,
                           const std::string& table = "queue",
                           absl::Duration timeout = absl::ZeroDuration()) {
  auto asked = std::make_shared<Asked>();
  replay.StartSample(table, {.batch = batch}, id, timeout, {}, [asked](absl::StatusOr<Batch> result) {
    asked->batch = std::move(result);
    asked->done.Notify();
  });
  return asked;
}
absl::StatusOr<Batch> Get(RemoteReplay& replay, const RemoteReplay::SampleId& id, uint32_t batch = 2,
                          const std::string& table = "queue") {
  const auto asked = Ask(replay, id, batch, table);
  asked->done.WaitForNotification();
  return asked->batch;
}

void AwaitWaitingSamples(const testing::ReplaceableServer& server, uint64_t count) {
  const absl::Time deadline = Later();
  while (server.Info("queue").waiting_samples() != count && MonotonicNow() < deadline) {
    std::this_thread::yield();
  }
  ASSERT_EQ(server.Info("queue").waiting_samples(), count);
}

class KeptAnswers : public ::testing::Test {
 protected:
  KeptAnswers() : server_({.clock = &clock_}) {
    TANDEM_CHECK(replay_.CreateTable(TableOptions::Queue("queue", 100)).ok());
    writer_ = testing::IdWriter(&replay_, "actor/0", 1);
  }
  void Write(int64_t first, int64_t count) {
    for (int64_t id = first; id < first + count; ++id)
      TANDEM_ASSERT_OK(testing::WriteId(*writer_, "queue", id));
  }

  SimulatedClock clock_{MonotonicNow()};
  testing::ReplaceableServer server_;
  RemoteReplay replay_{server_.channel()};
  std::unique_ptr<Writer> writer_;
};

TEST_F(KeptAnswers, ALateRequestWhoseAnswerWasAcknowledgedIsRefused) {
  Write(0, 6);
  const auto id = [](uint64_t sequence, uint64_t acknowledged) {
    return RemoteReplay::SampleId{
        .sampler = "learner", .incarnation = 1, .sequence = sequence, .acknowledged = acknowledged};
  };
  TANDEM_ASSERT_OK(Get(replay_, id(1, 0)));
  TANDEM_ASSERT_OK(Get(replay_, id(2, 1)));
  EXPECT_THAT(Get(replay_, id(1, 0)), StatusIs(kFailed, HasSubstr("has been acknowledged")));
  EXPECT_EQ(server_.Info("queue").items(), 2u);
}

TEST_F(KeptAnswers, ASequenceAsksForOneTableAndBatch) {
  Write(0, 4);
  TANDEM_ASSERT_OK(replay_.CreateTable(TableOptions::Queue("other", 100)));
  const RemoteReplay::SampleId id = {.sampler = "learner", .incarnation = 1, .sequence = 1};
  TANDEM_ASSERT_OK(Get(replay_, id));
  EXPECT_THAT(Get(replay_, id, 3),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("3 items of 'queue'")));
  EXPECT_THAT(Get(replay_, id, 2, "other"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'other'")));
  EXPECT_THAT(IdsOf(*Get(replay_, id)), ElementsAre(0, 1));
}

TEST_F(KeptAnswers, AReplacedSamplerTakesNoItems) {
  const auto old =
      Ask(replay_, {.sampler = "learner", .incarnation = 1, .sequence = 1}, 2, "queue", absl::Seconds(30));
  AwaitWaitingSamples(server_, 1);
  const auto next =
      Ask(replay_, {.sampler = "learner", .incarnation = 2, .sequence = 1}, 2, "queue", absl::Seconds(30));
  ASSERT_TRUE(old->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_THAT(old->batch, StatusIs(kFailed, HasSubstr("has replaced this one")));
  Write(0, 2);
  ASSERT_TRUE(next->done.WaitForNotificationWithTimeout(absl::Seconds(30)));
  TANDEM_ASSERT_OK(next->batch);
  EXPECT_THAT(IdsOf(*next->batch), ElementsAre(0, 1));
}

TEST_F(KeptAnswers, AnswersOfSamplersThatAreGoneAreDropped) {
  Write(0, 40);
  for (int i = 0; i < 20; ++i) {
    RemoteReplay client(server_.channel(), {.name = absl::StrCat("client/", i)});
    TANDEM_ASSERT_OK(client.Sample("queue", {.batch = 2}, Later()));
  }
  const auto writers_chunks = [&] {
    clock_.Advance(absl::Minutes(11));
    TANDEM_EXPECT_OK(testing::WriteId(*writer_, "queue", 100));  // lets go of the writers' idle chunks
    RemoteReplay client(server_.channel(), {.name = "last"});
    TANDEM_EXPECT_OK(client.Sample("queue", {.batch = 1}, Later()));
    return server_.server().State().chunk_bytes();
  };
  const uint64_t item = server_.server().State().chunk_bytes() / 40;
  EXPECT_LE(writers_chunks(), 20 * item) << "of 40 items that were sampled";
}

TEST_F(KeptAnswers, ARequestOfTooManyPartsIsRefused) {
  v1::ReplayInsertRequest request;
  request.set_table("queue");
  for (int i = 0; i < 65537; ++i) request.add_items();
  EXPECT_THAT(server_.channel()->Call("/tandem.v1.Replay/Insert", rpc::EncodeBulk(request, Bytes()), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("send several requests")));
}

TEST_F(KeptAnswers, AnEntryIsParkedOnce) {
  struct Call : rpc::ServerCall {
    const Bytes& request() const override { return bytes; }
    const std::string& peer() const override { return name; }
    absl::Time deadline() const override { return absl::InfiniteFuture(); }
    bool IsCancelled() const override { return false; }
    void Finish(absl::StatusOr<Bytes>) override {}
    Bytes bytes;
    std::string name;
  } call;
  ParkedCalls parked(&clock_, absl::Seconds(10), 1000);
  const auto entry = parked.NewEntry();
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(parked.Park(entry, call, 100, [] {}));
  EXPECT_EQ(parked.calls(), 1u);
  EXPECT_EQ(parked.bytes(), 100u);
  entry->Over();
  EXPECT_EQ(parked.calls(), 0u);
  EXPECT_EQ(parked.bytes(), 0u);
  parked.Stop();
}

// The sizes of a sharded sampler's requests are random, so that the failed one does not come again.
TEST(ShardedSamplerOfServers, AFailedDrawDoesNotKeepLaterAnswers) {
  std::atomic<bool> failing{false};
  testing::ReplaceableServer server({}, [&](absl::string_view method, int64_t) {
    return rpc::Fault{.kind = failing && absl::EndsWith(method, "/Sample") ? rpc::Fault::Kind::kNeverRespond
                                                                           : rpc::Fault::Kind::kNone};
  });
  RemoteReplay replay(server.channel());
  TANDEM_ASSERT_OK(replay.CreateTable(TableOptions::Uniform("replay", 10, 1)));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  int64_t id = 0;
  const auto fill = [&] {
    for (int i = 0; i < 10; ++i) TANDEM_ASSERT_OK(testing::WriteId(*writer, "replay", id++, Later()));
    TANDEM_ASSERT_OK(writer->Flush(Later()));
  };
  fill();
  const uint64_t item_bytes = server.server().State().chunk_bytes() / 10;
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto sampler, ShardedSampler::Create({&replay}, {.table = "replay"}));
  failing = true;
  EXPECT_FALSE(sampler->Sample(7, MonotonicNow() + absl::Milliseconds(100)).ok());
  failing = false;
  for (int i = 0; i < 20; ++i) {
    TANDEM_ASSERT_OK(sampler->Sample(8, Later()));
    fill();
  }
  // The table's ten items, those of one answer, and what the writer holds.
  EXPECT_LT(server.server().State().chunk_bytes(), 40 * item_bytes);
}

// A planned restart: calls that wait go on at the next server, and nothing that was acknowledged is lost.
TEST(StoppedServer, ClientsWaitForTheNextOneAndNothingIsLost) {
  tandem::testing::TempDir directory;
  testing::ReplaceableServer server({.checkpoint_directory = directory.path()});
  RemoteReplay replay(server.channel());
  const TableOptions options = TableOptions::Queue("queue", 4);
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  const auto writer = testing::IdWriter(&replay, "actor/0", 1);
  for (int64_t id = 0; id < 4; ++id) TANDEM_ASSERT_OK(testing::WriteId(*writer, "queue", id));
  server.server().Stop();
  EXPECT_THAT(testing::WriteId(*writer, "queue", 4, MonotonicNow() + absl::Milliseconds(50)),
              ::testing::Not(StatusIs(absl::StatusCode::kCancelled)));
  TANDEM_ASSERT_OK(server.server().SaveCheckpoint());
  server.Restart();
  TANDEM_ASSERT_OK(replay.CreateTable(options));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch batch, replay.Sample("queue", {.batch = 4}, Later()));
  EXPECT_THAT(IdsOf(batch), ElementsAre(0, 1, 2, 3));
  TANDEM_ASSERT_OK(writer->Flush(Later()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const Batch last, replay.Sample("queue", {.batch = 1}, Later()));
  EXPECT_THAT(IdsOf(last), ElementsAre(4));
  EXPECT_EQ(server.Info("queue").lost_items(), 0u);
}

}  // namespace
}  // namespace tandem::replay
