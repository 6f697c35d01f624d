// SPDX-License-Identifier: Apache-2.0
// Tests read caches of serving clients against servers. A trainer changes the rows meanwhile.

#include "ps/client/cache/read_cache.h"

#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/checkpoint/checkpoint_dir.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kWidth = 4;

class ReadCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    TANDEM_ASSERT_OK_AND_ASSIGN(trainer_, cluster_.Connect());
    TANDEM_ASSERT_OK_AND_ASSIGN(server_, cluster_.Connect(1));
    v1::TableConfig config = EmbeddingTable("t", kWidth, Sgd(1.0f), Constant(5));
    *config.mutable_update_mode() = Async();
    config.set_num_workers(2);
    TANDEM_ASSERT_OK(trainer_->CreateTable(config));
    TANDEM_ASSERT_OK(server_->OpenTable("t"));
    Use({.bytes = 1 << 20, .time_to_live = absl::Seconds(10)});
  }
  void Use(ReadCacheOptions options) {
    options.clock = &clock_;
    TANDEM_ASSERT_OK(server_->SetReadCache("t", options));
  }
  // Returns the first number of each row as the serving client reads it.
  std::vector<float> Read(const std::vector<uint64_t>& ids, bool read_only = true, bool repeats = false) {
    std::vector<float> rows(ids.size() * kWidth, -7), firsts;
    const auto versions =
        server_->Pull(0, read_only, {{.table = "t", .ids = ids, .rows = rows.data(), .repeats = repeats}});
    TANDEM_EXPECT_OK(versions);
    if (versions.ok()) versions_ = versions->front();
    for (size_t i = 0; i < ids.size(); ++i) {
      firsts.push_back(rows[i * kWidth]);
      EXPECT_EQ(rows[i * kWidth], rows[i * kWidth + kWidth - 1]);
    }
    return firsts;
  }
  // Creates the rows and adds 1 to each.
  void Train(const std::vector<uint64_t>& ids) {
    std::vector<float> rows(ids.size() * kWidth);
    TANDEM_EXPECT_OK(trainer_->Pull(step_, false, {{.table = "t", .ids = ids, .rows = rows.data()}}));
    const std::vector<float> gradients(ids.size() * kWidth, -1);
    TANDEM_EXPECT_OK(trainer_->Push(step_++, {{.table = "t", .ids = ids, .gradients = gradients.data()}}));
  }
  ReadCacheStatistics Statistics() { return server_->ReadCacheStatisticsOf("t").value(); }
  uint64_t Requests() {
    const std::vector<v1::TableInfo> tables = server_->ListTables().value();
    uint64_t pulls = 0;
    for (const v1::TableInfo& table : tables) pulls += table.statistics().pulls();
    return pulls;
  }

  SimulatedClock clock_;
  PsCluster cluster_{2};
  std::unique_ptr<Client> trainer_;
  std::unique_ptr<Client> server_;
  std::vector<uint64_t> versions_;  // of the last Read
  uint64_t step_ = 0;
};

TEST_F(ReadCacheTest, ACopyServesUntilItsTimeToLiveHasPassed) {
  Train({1, 2, 3});
  EXPECT_THAT(Read({1, 2, 3}), ElementsAre(6, 6, 6));
  Train({1, 2, 3});
  const uint64_t requests = Requests();
  clock_.Advance(absl::Milliseconds(9999));
  EXPECT_THAT(Read({3, 1}), ElementsAre(6, 6));
  EXPECT_THAT(versions_, Each(0));
  EXPECT_EQ(Requests(), requests);
  EXPECT_EQ(Statistics().hits, 2);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_THAT(Read({3, 1}), ElementsAre(7, 7));
  EXPECT_THAT(Read({1, 2}), ElementsAre(7, 7));  // one has a copy
  EXPECT_EQ(Statistics().lookups, 9);
  EXPECT_EQ(Statistics().hits, 3);
  EXPECT_EQ(Statistics().expired, 3);
  EXPECT_EQ(Statistics().rows, 3);
}

TEST_F(ReadCacheTest, AbsentRowsAreKeptAsTheirInitialValues) {
  EXPECT_THAT(Read({8, 9}), ElementsAre(5, 5));
  const uint64_t requests = Requests();
  EXPECT_THAT(Read({9, 8}), ElementsAre(5, 5));
  EXPECT_EQ(Requests(), requests);
  EXPECT_EQ(server_->ListTables().value()[0].statistics().rows(), 0);
}

TEST_F(ReadCacheTest, IdsThatRepeatAreReadFromCopiesAndServersAlike) {
  Train({1, 2});
  EXPECT_THAT(Read({1, 1}, true, true), ElementsAre(6, 6));
  EXPECT_THAT(Read({2, 1, 2, 1, 3, 2}, true, true), ElementsAre(6, 6, 6, 6, 5, 6));
  EXPECT_THAT(Read({}), ElementsAre());
}

TEST_F(ReadCacheTest, OtherPullsGoAroundIt) {
  Train({1});
  Read({1});
  Train({1});
  EXPECT_THAT(Read({1}, /*read_only=*/false), ElementsAre(7));
  const std::vector<uint64_t> ids = {1, 1};
  const std::vector<uint32_t> offsets = {0, 2};
  std::vector<float> sum(kWidth);
  TANDEM_EXPECT_OK(server_->Pull(
      0, true, {{.table = "t", .ids = ids, .rows = sum.data(), .pooling = v1::SUM, .offsets = offsets}}));
  EXPECT_THAT(sum, Each(14));
  EXPECT_THAT(Read({1}), ElementsAre(6));
}

TEST_F(ReadCacheTest, ClearWritesAndCheckpointsDropCopies) {
  TempDir dir;
  Train({1, 2});
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK(trainer_->SaveCheckpoint(unfinished).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string saved, CommitCheckpoint(unfinished, {}));
  Read({1, 2});
  Train({1, 2});
  TANDEM_ASSERT_OK(server_->ClearReadCache("t"));
  EXPECT_THAT(Read({1, 2}), ElementsAre(7, 7));
  RowStates states{.dim = kWidth, .state_floats = 0};
  states.values.assign(kWidth, 20);
  TANDEM_ASSERT_OK(server_->StartPushEpoch());
  TANDEM_ASSERT_OK(server_->WriteRowStates("t", std::vector<uint64_t>{2}, states));
  EXPECT_THAT(Read({1, 2}), ElementsAre(7, 20));
  TANDEM_ASSERT_OK(server_->LoadCheckpoint(saved));
  EXPECT_THAT(Read({1, 2}), ElementsAre(6, 6));
  EXPECT_EQ(Statistics().forgotten, 5);
}

TEST_F(ReadCacheTest, AResponseOfAServerWithOtherRowsDropsItsCopies) {
  TempDir dir;
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; id < 50; ++id) ids.push_back(id);
  Train(ids);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string unfinished, BeginCheckpoint(dir.path(), 1));
  TANDEM_ASSERT_OK(trainer_->SaveCheckpoint(unfinished).status());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::string saved, CommitCheckpoint(unfinished, {}));
  Train(ids);
  EXPECT_THAT(Read(ids), Each(7));
  TANDEM_ASSERT_OK(trainer_->LoadCheckpoint(saved));
  EXPECT_THAT(Read(ids), Each(7));  // nothing has told this client
  EXPECT_THAT(Read({1000}), ElementsAre(5));
  EXPECT_THAT(Read(ids), Each(6));
  EXPECT_EQ(Statistics().forgotten, 50);
}

TEST_F(ReadCacheTest, ItsMemoryIsBoundedAndTheHottestRowsStay) {
  Use({.bytes = 16 << 10, .time_to_live = absl::Hours(1)});
  const uint64_t capacity = Statistics().capacity;
  EXPECT_GT(capacity, 100);
  const std::vector<uint64_t> hot = {1, 2, 3, 4};
  for (uint64_t first = 100; first < 100 + 20 * capacity; first += 10) {
    std::vector<uint64_t> ids = hot;
    for (uint64_t i = 0; i < 10; ++i) ids.push_back(first + i);
    Read(ids);
    EXPECT_LE(Statistics().bytes, 16 << 10);
  }
  const uint64_t hits = Statistics().hits;
  Read(hot);
  EXPECT_EQ(Statistics().hits, hits + 4);
  EXPECT_LE(Statistics().rows, capacity);
  EXPECT_GT(Statistics().refused + Statistics().evicted, 0);
}

TEST_F(ReadCacheTest, ARowReplacesAnotherAtItsSecondUse) {
  Use({.bytes = 16 << 10, .time_to_live = absl::Hours(1)});
  const uint64_t capacity = Statistics().capacity;
  std::vector<uint64_t> ids(4 * capacity);
  std::iota(ids.begin(), ids.end(), 0);
  Read(ids);
  ASSERT_EQ(Statistics().rows, capacity);
  // Epochs in which most copies are not used, so that one use more would be enough to replace them.
  const std::vector<uint64_t> hot = {0, 1, 2, 3, 4, 5, 6, 7};
  for (uint64_t i = 0; i < 3 * capacity; ++i) Read(hot);
  std::vector<uint64_t> fresh(32);
  std::iota(fresh.begin(), fresh.end(), 1'000'000);
  const uint64_t admitted = Statistics().admitted;
  Read(fresh);
  EXPECT_EQ(Statistics().admitted, admitted);
  Read(fresh);
  EXPECT_EQ(Statistics().admitted, admitted + fresh.size());
  const uint64_t hits = Statistics().hits;
  Read(fresh);
  EXPECT_EQ(Statistics().hits, hits + fresh.size());
}

// The rows that the servers send go between those that have copies, from one server and from several.
TEST_F(ReadCacheTest, RowsOfAPartlyServedPullAreInTheirPlaces) {
  for (const uint32_t servers : {1u, 2u}) {
    PsCluster cluster(servers);
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Client> client, cluster.Connect());
    TANDEM_ASSERT_OK(client->CreateTable(EmbeddingTable("u", kWidth, Sgd(1.0f), Zeros())));
    std::vector<uint64_t> ids(6000);
    std::iota(ids.begin(), ids.end(), 0);
    std::vector<float> rows(ids.size() * kWidth), gradients(ids.size() * kWidth);
    TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "u", .ids = ids, .rows = rows.data()}}));
    for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = -static_cast<float>(ids[i / kWidth]);
    TANDEM_ASSERT_OK(client->Push(0, {{.table = "u", .ids = ids, .gradients = gradients.data()}}));
    TANDEM_ASSERT_OK(client->SetReadCache("u", {.bytes = 1 << 20, .time_to_live = absl::Hours(1)}));
    CounterRandom random(3, servers);
    for (const bool repeats : {false, true, true}) {
      std::vector<uint64_t> some;
      for (uint64_t id = 0; id < ids.size(); ++id) {
        if (random.Below(2) == 0) some.insert(some.end(), 1 + (repeats ? random.Below(3) : 0), id);
      }
      rows.assign(some.size() * kWidth, -7);
      TANDEM_ASSERT_OK(
          client->Pull(1, true, {{.table = "u", .ids = some, .rows = rows.data(), .repeats = repeats}}));
      for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], static_cast<float>(some[i / kWidth])) << i;
    }
    EXPECT_GT(client->ReadCacheStatisticsOf("u")->hits, 1000u);
  }
}

TEST_F(ReadCacheTest, AnAnswerOfAFollowerTellsNothingOfTheServersGeneration) {
  const ShardMap map = ShardMap::Even(2, 16);
  ReadCache cache(kWidth, {.bytes = 1 << 20, .time_to_live = absl::Hours(1), .clock = &clock_}, &map);
  std::vector<uint64_t> ids(20);
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<float> rows(ids.size() * kWidth, 1);
  const auto missing = [&] { return cache.Find(cache.Now(), ids, rows.data()).size(); };
  cache.Accept(cache.Now(), ids, {}, rows.data(), {5, 6});
  ASSERT_EQ(missing(), 0u);
  cache.Adopt({0, 6});
  cache.Adopt({0, 0});
  cache.Adopt({5, 6});
  EXPECT_EQ(missing(), 0u);
  cache.Adopt({0, 0});
  cache.Adopt({7, 0});
  EXPECT_GT(missing(), 0u);  // server 0 was restarted
  EXPECT_LT(missing(), ids.size());
}

// Moves on by `step` each time it is asked.
class SteppingClock : public SimulatedClock {
 public:
  absl::Time Now() override {
    Advance(step);
    return SimulatedClock::Now();
  }
  absl::Duration step = absl::Microseconds(10);
};

TEST_F(ReadCacheTest, LargePullsGoAroundACacheThatIsMeasuredToCostTime) {
  SteppingClock clock;
  TANDEM_ASSERT_OK(
      server_->SetReadCache("t", {.bytes = 1 << 20, .time_to_live = absl::Hours(1), .clock = &clock}));
  std::vector<uint64_t> ids(ReadGauge::kLargePull);
  std::iota(ids.begin(), ids.end(), 0);
  Train(ids);
  for (uint64_t i = 0; i < ReadGauge::kWarmUp + 2 * ReadGauge::kTrial; ++i) {
    const uint64_t bypassed = Statistics().bypassed;
    const bool with_cache = i < ReadGauge::kWarmUp || (i - ReadGauge::kWarmUp) % 2 == 0;
    clock.step = absl::Microseconds(with_cache ? 20 : 10);
    EXPECT_THAT(Read(ids), Each(6));
    EXPECT_EQ(Statistics().bypassed, bypassed + (with_cache ? 0 : ids.size()));
  }
  Train(ids);
  const uint64_t lookups = Statistics().lookups;
  EXPECT_THAT(Read(ids), Each(7));
  EXPECT_THAT(versions_, Each(::testing::Gt(0)));
  EXPECT_EQ(Statistics().lookups, lookups);
  EXPECT_EQ(Statistics().bypassed, (ReadGauge::kTrial + 1) * ids.size());
  EXPECT_THAT(Read({1}), ElementsAre(6));  // small pulls use it as before
}

TEST_F(ReadCacheTest, OptionsAreChecked) {
  const auto set = [&](ReadCacheOptions options) { return server_->SetReadCache("t", options); };
  EXPECT_THAT(set({.bytes = 100}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("less than 16 rows")));
  EXPECT_THAT(set({.bytes = 1 << 20, .time_to_live = absl::ZeroDuration()}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("time to live is 0")));
  EXPECT_THAT(server_->SetReadCache("u", {}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(server_->ClearReadCache("u"), StatusIs(absl::StatusCode::kNotFound));
  TANDEM_ASSERT_OK(trainer_->CreateTable(DenseTable("d", 10, Sgd(1.0f), Zeros())));
  TANDEM_ASSERT_OK(server_->OpenTable("d"));
  EXPECT_THAT(server_->SetReadCache("d", {.bytes = 1 << 20}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dense tables have none")));
  TANDEM_ASSERT_OK(set({}));
  EXPECT_EQ(Statistics().capacity, 0);
  Read({1});
  EXPECT_EQ(Statistics().lookups, 0);
  TANDEM_EXPECT_OK(server_->SetUpdateMode("t", Sync()));  // read-only pulls may be cached in every mode
  Use({.bytes = 1 << 20});
}

// Every row is whole, and the last ones are the newest, although rows change and copies are dropped
// meanwhile.
TEST_F(ReadCacheTest, ThreadsReadClearAndExpireAtTheSameTime) {
  Use({.bytes = 1 << 14, .time_to_live = absl::Milliseconds(5)});
  std::vector<uint64_t> ids;
  for (uint64_t id = 0; id < 64; ++id) ids.push_back(id);
  Train(ids);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (uint64_t t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      CounterRandom random(7, t);
      while (!stop.load()) {
        std::vector<uint64_t> some(1 + random.Below(40));
        for (uint64_t& id : some) id = random.Below(64);
        std::vector<float> rows(some.size() * kWidth, -7);
        TANDEM_EXPECT_OK(
            server_->Pull(0, true, {{.table = "t", .ids = some, .rows = rows.data(), .repeats = true}}));
        for (const float value : rows) EXPECT_GE(value, 6);
        for (size_t i = 0; i < rows.size(); i += kWidth) EXPECT_EQ(rows[i], rows[i + kWidth - 1]);
      }
    });
  }
  for (int round = 0; round < 60; ++round) {
    Train(ids);
    clock_.Advance(absl::Milliseconds(2));
    if (round % 10 == 9) {
      TANDEM_EXPECT_OK(server_->ClearReadCache("t"));
    }
  }
  stop.store(true);
  for (std::thread& reader : readers) reader.join();
  clock_.Advance(absl::Milliseconds(5));
  EXPECT_THAT(Read(ids), Each(5 + 61));
}

}  // namespace
}  // namespace tandem::ps
