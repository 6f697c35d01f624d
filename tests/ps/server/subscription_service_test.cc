// SPDX-License-Identifier: Apache-2.0
// What subscribers get: every change once its update is safe, in pieces of any size, in every update mode,
// and everything again when positions cannot be compared.

#include <atomic>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "tandem/v1/subscriptions.pb.h"
#include "tests/ps/server/cluster.h"
#include "tests/ps/server/subscriber.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kDim = 3;

PushOf RandomPush(CounterRandom& random, uint64_t ids, int rows) {
  PushOf push{.table = "user", .dim = kDim};
  std::set<uint64_t> seen;
  for (int i = 0; i < rows; ++i) {
    const uint64_t id = random.Below(ids) * 7919;
    if (!seen.insert(id).second) continue;
    push.ids.push_back(id);
    for (uint32_t d = 0; d < kDim; ++d) push.gradients.push_back(static_cast<float>(random.Normal()));
  }
  return push;
}

// Pulls the rows of a push, which creates them, and pushes.
absl::Status Train(Driver& server, uint64_t step, const PushOf& push) {
  TANDEM_RETURN_IF_ERROR(server.Pull(0, step, {{push.table, push.ids}}).status());
  return server.Push({.step = step}, {push}).status();
}

class SubscriptionServiceTest : public ::testing::TestWithParam<v1::UpdateMode> {};

TEST_P(SubscriptionServiceTest, GivesEveryChangeInPiecesOfAnySize) {
  Driver server;
  const v1::TableConfig config = TestTable("user", kDim, 1, GetParam(), Adagrad(0.1f));
  TANDEM_ASSERT_OK(server.CreateTable(config));
  Subscriber large(&server), small(&server);
  small.max_bytes = 100;
  CounterRandom random(1, 2);
  for (uint64_t step = 0; step < 20; ++step) {
    const PushOf push = RandomPush(random, 1000, 50);
    TANDEM_ASSERT_OK(Train(server, step, push));
    if (step % 3 != 0) continue;
    TANDEM_ASSERT_OK(server.Flush("user"));
    TANDEM_ASSERT_OK(large.CatchUp().status());
    TANDEM_ASSERT_OK(small.CatchUp().status());
    ASSERT_EQ(large.rows("user"), RowsOf(server, "user")) << "after step " << step;
    ASSERT_EQ(small.rows("user"), RowsOf(server, "user")) << "after step " << step;
  }
  EXPECT_GT(large.rows("user").size(), 500);
}
INSTANTIATE_TEST_SUITE_P(Modes, SubscriptionServiceTest,
                         ::testing::Values(Sync(), Bounded(2), Async(), Gba(8, 2)));

TEST(SubscriptionService, GivesOnlyWhatHasChanged) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  CounterRandom random(3, 4);
  TANDEM_ASSERT_OK(Train(server, 0, RandomPush(random, 100'000, 5000)));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK_AND_ASSIGN(const size_t all, subscriber.CatchUp());
  EXPECT_GT(all, 4000);
  TANDEM_ASSERT_OK_AND_ASSIGN(const size_t none, subscriber.CatchUp());
  EXPECT_EQ(none, 0);
  TANDEM_ASSERT_OK(Train(server, 1, RandomPush(random, 100'000, 10)));
  // The rows of the update before may come again.
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  TANDEM_ASSERT_OK(Train(server, 2, RandomPush(random, 100'000, 10)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const size_t few, subscriber.CatchUp());
  EXPECT_LE(few, 20);
  EXPECT_EQ(subscriber.rows("user"), RowsOf(server, "user"));
}

// A grant for some tables is checked against the tables that the request names.
TEST(SubscriptionService, APassOverOtherTablesThanThoseAskedForGivesNothingOfThem) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("item", kDim, 1, Async(), Sgd(1))));
  CounterRandom random(3, 4);
  TANDEM_ASSERT_OK(Train(server, 0, RandomPush(random, 100'000, 5000)));
  Subscriber all(&server);
  all.max_bytes = 100;
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::GetChangesResponse first, all.Next());
  ASSERT_FALSE(first.complete());
  Subscriber one(&server);
  one.position = all.position;
  one.tables = {"item"};
  TANDEM_ASSERT_OK(one.CatchUp().status());
  EXPECT_TRUE(one.rows("user").empty());
}

TEST(SubscriptionService, ADroppedTableHasNoRowsAndMayComeAgainWithAnotherDim) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("item", kDim, 1, Async(), Sgd(1))));
  CounterRandom random(3, 4);
  TANDEM_ASSERT_OK(Train(server, 0, RandomPush(random, 1000, 50)));
  Subscriber all(&server), small(&server), one(&server);
  small.max_bytes = 100;
  one.tables = {"user"};
  for (Subscriber* subscriber : {&all, &small, &one}) TANDEM_ASSERT_OK(subscriber->CatchUp().status());
  EXPECT_FALSE(all.rows("user").empty());
  TANDEM_ASSERT_OK(small.Next().status());
  TANDEM_ASSERT_OK(server.DropTable("user"));
  for (Subscriber* subscriber : {&all, &small}) {
    TANDEM_ASSERT_OK(subscriber->CatchUp().status());
    EXPECT_THAT(subscriber->rows("user"), IsEmpty());
  }
  EXPECT_THAT(one.Next().status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'user'")));
  // Nothing more is told of it.
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::GetChangesResponse nothing, all.Next());
  EXPECT_EQ(nothing.changes_size(), 0);
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", 2, 1, Async(), Sgd(1))));
  TANDEM_ASSERT_OK(server.Push({.step = 1}, {{"user", 2, {7}, {1, 1}}}));
  for (Subscriber* subscriber : {&all, &small, &one}) {
    if (subscriber == &one) subscriber->rows("user").clear();
    TANDEM_ASSERT_OK(subscriber->CatchUp().status());
    EXPECT_EQ(subscriber->rows("user"), RowsOf(server, "user"));
  }
}

TEST(SubscriptionService, ATableThatIsDroppedAndCreatedBetweenTwoPassesComesWhole) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  CounterRandom random(3, 4);
  TANDEM_ASSERT_OK(Train(server, 0, RandomPush(random, 1000, 50)));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  TANDEM_ASSERT_OK(server.DropTable("user"));
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  TANDEM_ASSERT_OK(Train(server, 1, RandomPush(random, 1000, 5)));
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_EQ(subscriber.rows("user"), RowsOf(server, "user"));
}

TEST(SubscriptionService, GivesTheIdsOfEvictedRows) {
  Driver server;
  v1::TableConfig config = TestTable("user", kDim, 1, Async(), Sgd(1));
  *config.mutable_eviction() = EvictAfter(300);
  TANDEM_ASSERT_OK(server.CreateTable(config));
  Subscriber subscriber(&server);
  CounterRandom random(5, 6);
  size_t most = 0;
  for (uint64_t step = 0; step < 1500; ++step) {
    TANDEM_ASSERT_OK(Train(server, step, RandomPush(random, 5000, 5)));
    if (step % 100 != 0) continue;
    TANDEM_ASSERT_OK(subscriber.CatchUp().status());
    ASSERT_EQ(subscriber.rows("user"), RowsOf(server, "user")) << "after step " << step;
    most = std::max(most, subscriber.rows("user").size());
  }
  EXPECT_GT(server.Table("user").statistics().evicted_rows(), 1000);
  EXPECT_GT(most, 500);
}

TEST(SubscriptionService, GivesRowsOnDisk) {
  MemoryDisk disk;
  Driver server({.num_buckets = 16, .cold_store = std::make_shared<MemoryStore>(&disk)});
  v1::TableConfig config = TestTable("user", kDim, 1, Async(), Sgd(1));
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(64 << 10);
  config.set_spill(true);
  TANDEM_ASSERT_OK(server.CreateTable(config));
  Subscriber large(&server), small(&server);
  small.max_bytes = 500;
  CounterRandom random(11, 12);
  for (uint64_t step = 0; step < 40; ++step) {
    TANDEM_ASSERT_OK(Train(server, step, RandomPush(random, 10'000, 200)));
    if (step % 10 != 0) continue;
    TANDEM_ASSERT_OK(large.CatchUp().status());
    TANDEM_ASSERT_OK(small.CatchUp().status());
  }
  TANDEM_ASSERT_OK(large.CatchUp().status());
  TANDEM_ASSERT_OK(small.CatchUp().status());
  EXPECT_GT(server.Table("user").statistics().spilled_rows(), 1000);
  EXPECT_EQ(large.rows("user"), RowsOf(server, "user"));
  EXPECT_EQ(small.rows("user"), RowsOf(server, "user"));
}

TEST(SubscriptionService, GivesEveryChangeWhileWorkersPush) {
  constexpr uint32_t kWorkers = 3;
  Driver server;
  v1::TableConfig config = TestTable("user", kDim, kWorkers, Async(), Sgd(1));
  *config.mutable_eviction() = EvictAfter(400);
  TANDEM_ASSERT_OK(server.CreateTable(config));
  std::atomic<uint32_t> pushing{kWorkers};
  std::vector<std::jthread> workers;
  for (uint32_t w = 0; w < kWorkers; ++w) {
    workers.emplace_back([&, w] {
      CounterRandom random(7, w);
      for (uint64_t step = 0; step < 500; ++step) {
        const PushOf push = RandomPush(random, 2000, 20);
        TANDEM_EXPECT_OK(server.Pull(w, step, {{push.table, push.ids}}).status());
        TANDEM_EXPECT_OK(server.Push({.worker = w, .step = step}, {push}).status());
      }
      --pushing;
    });
  }
  Subscriber subscriber(&server);
  subscriber.max_bytes = 1000;
  do {
    TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  } while (pushing > 0);
  workers.clear();
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_EQ(subscriber.rows("user"), RowsOf(server, "user"));
}

TEST(SubscriptionService, CountsWhatItGives) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  const auto statistics = [&server] {
    return *server.Call<v1::ServerStatistics>("GetServerStatistics", v1::GetServerStatisticsRequest());
  };
  EXPECT_EQ(statistics().subscription_calls(), 0);
  CounterRandom random(1, 2);
  const PushOf push = RandomPush(random, 1000, 50);
  TANDEM_ASSERT_OK(Train(server, 0, push));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_EQ(statistics().subscription_calls(), 1);
  EXPECT_EQ(statistics().subscription_rows(), push.ids.size());
  EXPECT_GT(statistics().subscription_bytes(), push.ids.size() * kDim * sizeof(float));
}

TEST(SubscriptionService, WaitsForAChange) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  const std::shared_ptr<TestCall> call = subscriber.Start(/*wait_ms=*/60'000);
  TANDEM_ASSERT_OK(Train(server, 0, {"user", kDim, {7}, {1, 2, 3}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::GetChangesResponse response, subscriber.Finish(*call));
  EXPECT_TRUE(response.complete());
  EXPECT_EQ(subscriber.rows("user"), RowsOf(server, "user"));
  EXPECT_EQ(subscriber.rows("user").size(), 1);
}

TEST(SubscriptionService, AnswersWithoutAChangeWhenTheWaitIsOver) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  const std::string before = subscriber.position;
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::GetChangesResponse response, subscriber.Next(/*wait_ms=*/20));
  EXPECT_TRUE(response.complete());
  EXPECT_THAT(response.changes(), IsEmpty());
  EXPECT_EQ(subscriber.position, before);
}

TEST(SubscriptionService, GivesEverythingAgainAfterACheckpointIsLoaded) {
  const TempDir dir;
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  CounterRandom random(7, 8);
  TANDEM_ASSERT_OK(Train(server, 0, RandomPush(random, 500, 100)));
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::SaveCheckpointResponse saved, server.Save(unfinished));
  const std::vector<v1::SavedFile> written(saved.written().begin(), saved.written().end());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string path, CommitCheckpoint(unfinished, {}, written));
  TANDEM_ASSERT_OK(Train(server, 1, RandomPush(random, 500, 100)));
  Subscriber subscriber(&server);
  subscriber.max_bytes = 200;
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  TANDEM_ASSERT_OK(Train(server, 2, RandomPush(random, 500, 100)));
  TANDEM_ASSERT_OK(subscriber.Next().status());  // a pass is under way
  TANDEM_ASSERT_OK(server.Load(path).status());
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_EQ(subscriber.rows("user"), RowsOf(server, "user"));
}

TEST(SubscriptionService, GivesRowsThatAWorkerHasWritten) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  TANDEM_ASSERT_OK(Train(server, 0, {"user", kDim, {7}, {1, 2, 3}}));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  v1::WriteRowStatesRequest write;
  write.set_epoch(1);
  write.set_sequence(2);
  write.set_table("user");
  write.add_ids(7);
  write.set_dim(kDim);
  for (const float value : {4.0f, 5.0f, 6.0f}) write.add_values(value);
  TANDEM_ASSERT_OK(server.Call<v1::WriteRowStatesResponse>("WriteRowStates", write).status());
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  EXPECT_THAT(subscriber.rows("user")[7], ::testing::ElementsAre(4, 5, 6));
}

TEST(SubscriptionService, NamesWhatIsWrongWithARequest) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  Subscriber subscriber(&server);
  EXPECT_THAT(subscriber.Next(/*wait_ms=*/60'001).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("wait_ms is 60001")));
  subscriber.position = "nonsense";
  EXPECT_THAT(subscriber.Next().status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("damaged"), HasSubstr("without a position"))));
  subscriber.position = "";
  subscriber.tables = {"nobody"};
  EXPECT_THAT(subscriber.Next().status(), StatusIs(absl::StatusCode::kNotFound, HasSubstr("nobody")));
  subscriber.tables = {};
  subscriber.max_bytes = ~uint32_t{0};
  EXPECT_THAT(subscriber.Next().status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_bytes")));
  Cluster two(2);
  TANDEM_ASSERT_OK(two.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  Subscriber other(&two.server(1));
  TANDEM_ASSERT_OK(other.CatchUp().status());
  subscriber.max_bytes = 0;
  subscriber.position = other.position;
  EXPECT_THAT(subscriber.Next().status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("server 1 of 2"), HasSubstr("server 0 of 1"))));
}

TEST(SubscriptionService, FailsWaitingCallsWhenTheServerStops) {
  Driver server;
  TANDEM_ASSERT_OK(server.CreateTable(TestTable("user", kDim, 1, Async(), Sgd(1))));
  Subscriber subscriber(&server);
  TANDEM_ASSERT_OK(subscriber.CatchUp().status());
  const std::shared_ptr<TestCall> call = subscriber.Start(/*wait_ms=*/60'000);
  server.server().Stop();
  EXPECT_THAT(call->Wait().status(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("same position")));
}

}  // namespace
}  // namespace tandem::ps::testing
