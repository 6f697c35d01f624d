// SPDX-License-Identifier: Apache-2.0
// Global-batch aggregation: which pushes form an update, on one server and on several.

#include "ps/server/table/global_batch.h"

#include <algorithm>
#include <random>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/server/table/update_order.h"
#include "tests/ps/server/cluster.h"
#include "tests/ps/server/driver.h"
#include "tests/ps/server/table/sum_table.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps::testing {
namespace {

using tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// --- GlobalBatch.

TablePush PushOfWorker(uint32_t worker, uint64_t step, uint64_t update = 0) {
  TablePush push;
  push.worker = worker;
  push.step = step;
  push.position.update = update;
  return push;
}
std::vector<uint64_t> Steps(const std::vector<TablePush>& pushes) {
  std::vector<uint64_t> steps;
  for (const TablePush& push : pushes) steps.push_back(push.step);
  return steps;
}

TEST(GlobalBatch, PlacesAreGivenInOrderOfArrival) {
  GlobalBatch batch;
  batch.Reset(/*version=*/10);
  for (const uint64_t update : {11, 11, 12, 12, 13}) {
    EXPECT_EQ(batch.Assign(/*pulled_version=*/10, /*size=*/2, /*staleness=*/5).update, update);
  }
}

TEST(GlobalBatch, APushIsStaleWhenItsUpdateIsTooFarFromItsPull) {
  GlobalBatch batch;
  batch.Reset(10);
  EXPECT_FALSE(batch.Assign(8, 1, 2).stale);  // update 11 is made at version 10
  EXPECT_TRUE(batch.Assign(8, 1, 2).stale);   // at version 11
  EXPECT_FALSE(batch.Assign(12, 1, 0).stale);
  EXPECT_FALSE(batch.Assign(uint64_t{1} << 62, 1, 0).stale);  // a pull from the future
}

TEST(GlobalBatch, UpdatesAreMadeInTheirOrderWhenComplete) {
  GlobalBatch batch;
  batch.Reset(0);
  batch.Add(PushOfWorker(1, 30, 2));
  batch.Add(PushOfWorker(0, 31, 2));
  EXPECT_FALSE(batch.TakeNext(2).has_value());  // update 1 comes first
  batch.Add(PushOfWorker(1, 10, 1));
  EXPECT_FALSE(batch.TakeNext(2).has_value());
  batch.Add(PushOfWorker(0, 11, 1));
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(11, 10));  // worker 0 first
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(31, 30));
  EXPECT_FALSE(batch.TakeNext(2).has_value());
  EXPECT_EQ(batch.pushes(), 0);
}

// Server 0 becomes GBA at version 6, this server at version 4, since two pushes are still on their way to it.
TEST(GlobalBatch, TheFirstUpdateIsTheSameOnAllServers) {
  GlobalBatch first, other;
  first.Start(6);
  other.Start(4);
  std::vector<TablePush> pushes;
  for (uint64_t step = 0; step < 4; ++step) {
    pushes.push_back(PushOfWorker(0, step));
    pushes.back().position = first.Assign(/*pulled_version=*/6, /*size=*/2, /*staleness=*/4);
  }
  // The pushes of the second update arrive first.
  other.Add(std::move(pushes[2]));
  other.Add(std::move(pushes[3]));
  EXPECT_FALSE(other.TakeNext(2).has_value());
  other.Add(std::move(pushes[1]));
  other.Add(std::move(pushes[0]));
  EXPECT_THAT(Steps(*other.TakeNext(2)), ElementsAre(0, 1));
  EXPECT_THAT(Steps(*other.TakeNext(2)), ElementsAre(2, 3));
}

// A push that got its position when the table was GBA for the last time must not block the updates.
TEST(GlobalBatch, APushFromAnEarlierTimeJoinsTheNextUpdate) {
  GlobalBatch batch;
  batch.Start(9);
  TablePush late = PushOfWorker(0, 1, /*update=*/3);
  late.position.first = 2;
  batch.Add(std::move(late));
  for (const uint64_t step : {7, 8}) {
    TablePush push = PushOfWorker(1, step, /*update=*/10);
    push.position.first = 10;
    batch.Add(std::move(push));
  }
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(1, 7, 8));
}

TEST(Gba, ANewTableBeginsWithUpdateOneWhateverArrivesFirst) {
  const std::string table = "t";
  UpdateOrder order(&table, Gba(4, 2), 2);
  for (const uint64_t update : {2, 2, 1, 1}) order.Add(PushOfWorker(0, update * 10, update));
  const std::optional<std::vector<TablePush>> batch = order.BeginBatch();
  ASSERT_TRUE(batch.has_value());
  EXPECT_THAT(Steps(*batch), ElementsAre(10, 10));
}

TEST(GlobalBatch, PushesWithoutAPlaceAreAnUpdateOfTheirOwnOrRideAlong) {
  GlobalBatch batch;
  batch.Start(6);  // the version of server 0 is not known
  batch.Add(PushOfWorker(0, 1));
  EXPECT_FALSE(batch.TakeNext(2).has_value());
  batch.Add(PushOfWorker(1, 1));
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(1, 1));
  batch.Add(PushOfWorker(0, 2));
  batch.Add(PushOfWorker(0, 3, 7));
  EXPECT_FALSE(batch.TakeNext(2).has_value());  // it does not replace another worker's push
  batch.Add(PushOfWorker(1, 3, 7));
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(2, 3, 3));
  batch.Add(PushOfWorker(1, 4, 7));  // its update was made already
  batch.Add(PushOfWorker(0, 5, 8));
  batch.Add(PushOfWorker(1, 5, 8));
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(5, 4, 5));
}

TEST(GlobalBatch, APushThatNeverComesIsNotWaitedForForever) {
  GlobalBatch batch;
  batch.Reset(0);
  batch.Add(PushOfWorker(0, 0, 1));
  uint64_t step = 0;
  while (batch.pushes() < 2 * GlobalBatch::kMaxUpdates) {
    ASSERT_FALSE(batch.TakeNext(2).has_value());
    ++step;
    batch.Add(PushOfWorker(step % 2, step, 2 + (step - 1) / 2));
  }
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(0));
  EXPECT_THAT(Steps(*batch.TakeNext(2)), ElementsAre(2, 1));
}

// --- On servers.

v1::TableStatistics StatisticsOf(Driver& driver) { return driver.Table("user").statistics(); }

TEST(Gba, AnUpdateIsMadeOfAGlobalBatchWhoeverSentIt) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(3, Gba(4))));
  TANDEM_ASSERT_OK(driver.Pull(0, 100, {{"user", {42}}}));  // never waits
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 7, .sequence = 1}, {One(1)}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 3, .sequence = 2}, {One(2)}));
  EXPECT_EQ(Read(driver), 0.0f);
  EXPECT_EQ(StatisticsOf(driver).kept_pushes(), 2);
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(4)}));
  EXPECT_EQ(Read(driver), -7.0f);
  EXPECT_EQ(StatisticsOf(driver).version(), 1);
  EXPECT_EQ(StatisticsOf(driver).kept_pushes(), 0);
  EXPECT_EQ(StatisticsOf(driver).kept_bytes(), 0);
}

TEST(Gba, GradientsAreAddedInTheOrderOfWorkerAndStep) {
  const std::pair<uint32_t, uint64_t> tags[] = {{0, 5}, {1, 2}, {1, 9}};
  const float gradients[] = {1e8f, 1.0f, -1e8f};  // added in this order, the 1 is lost
  std::vector<int> order = {0, 1, 2};
  do {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Gba(4, 3))));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
    uint64_t sequence = 0;
    for (const int i : order) {
      TANDEM_ASSERT_OK(driver.Push({.worker = tags[i].first, .step = tags[i].second, .sequence = ++sequence},
                                   {One(gradients[i])}));
    }
    EXPECT_EQ(Read(driver), 0.0f);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Gba, StalePushesAreLeftOutButCount) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Gba(1, 2))));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  for (uint64_t step = 0; step < 4; ++step) {
    TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = step}, {One(1, step / 2)}));
  }
  EXPECT_EQ(StatisticsOf(driver).version(), 2);
  absl::StatusOr<v1::PushResponse> old = driver.Push({.worker = 1, .step = 0}, {One(100, /*version=*/0)});
  TANDEM_ASSERT_OK(old);
  ASSERT_EQ(old->places_size(), 1) << old->DebugString();
  EXPECT_EQ(old->places(0).update(), 3);
  EXPECT_TRUE(old->places(0).stale());
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 1}, {One(10, 1)}));
  EXPECT_EQ(Read(driver), -14.0f);
  const v1::TableStatistics statistics = StatisticsOf(driver);
  EXPECT_EQ(statistics.version(), 3);
  EXPECT_EQ(statistics.stale_pushes(), 1);
  EXPECT_EQ(statistics.staleness_max(), 2);
  EXPECT_EQ(statistics.pushed_rows(), 5);
  // An update of stale pushes only counts as an update, too.
  for (uint64_t step = 2; step < 4; ++step) {
    TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = step}, {One(100, 0)}));
  }
  EXPECT_EQ(Read(driver), -14.0f);
  EXPECT_EQ(StatisticsOf(driver).version(), 4);
}

TEST(Gba, ARepeatedPushHearsItsPlaceAgain) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Gba(1, 2))));
  absl::StatusOr<v1::PushResponse> first = driver.Push({.worker = 1, .step = 5}, {One(1)});
  absl::StatusOr<v1::PushResponse> again = driver.Push({.worker = 1, .step = 5}, {One(1)});
  TANDEM_ASSERT_OK(again);
  EXPECT_TRUE(again->duplicate());
  ASSERT_EQ(again->places_size(), 1);
  EXPECT_EQ(again->places(0).update(), first->places(0).update());
  EXPECT_EQ(StatisticsOf(driver).kept_pushes(), 1);
}

TEST(Gba, WhatIsKeptIsAppliedOnDemandAndByACheckpoint) {
  tandem::testing::TempDir dir;
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Gba(4, 3))));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1)}));
  v1::SetUpdateModeRequest flush;  // as clients before the method Flush send it
  flush.set_table("user");
  TANDEM_ASSERT_OK(driver.Call<v1::SetUpdateModeResponse>("SetUpdateMode", flush).status());
  EXPECT_EQ(Read(driver), -1.0f);
  EXPECT_EQ(driver.Table("user").config().update_mode().kind(), v1::UpdateMode::GBA);
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 1}, {One(2)}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(4)}));
  TANDEM_ASSERT_OK(driver.Save(dir.path()).status());
  EXPECT_EQ(Read(driver), -7.0f);
  EXPECT_EQ(StatisticsOf(driver).version(), 2);
  // The next update needs all its pushes again.
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 2}, {One(8)}));
  EXPECT_EQ(Read(driver), -7.0f);
  TANDEM_ASSERT_OK(driver.SetUpdateMode("user", Async()));
  EXPECT_EQ(Read(driver), -15.0f);
}

TEST(Gba, FlushAppliesAnIncompleteUpdate) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Gba(4, 3))));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1)}));
  EXPECT_EQ(Read(driver), 0.0f);
  TANDEM_ASSERT_OK(driver.Flush("user"));
  EXPECT_EQ(Read(driver), -1.0f);
  EXPECT_EQ(StatisticsOf(driver).kept_pushes(), 0);
  EXPECT_EQ(StatisticsOf(driver).version(), 1);
  EXPECT_EQ(driver.Table("user").config().update_mode().kind(), v1::UpdateMode::GBA);
  // The next update needs all its pushes again.
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 1}, {One(2)}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(4)}));
  EXPECT_EQ(Read(driver), -1.0f);
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 1}, {One(8)}));
  EXPECT_EQ(Read(driver), -15.0f);
  EXPECT_THAT(driver.Flush("usr"), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'usr'")));
}

TEST(Gba, FlushDoesNothingToOtherModes) {
  for (const v1::UpdateMode& mode : {Sync(), Bounded(2), Async()}) {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, mode)));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
    TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1)}));
    const v1::TableStatistics before = StatisticsOf(driver);
    TANDEM_ASSERT_OK(driver.Flush("user"));
    EXPECT_EQ(StatisticsOf(driver).version(), before.version());
    EXPECT_EQ(StatisticsOf(driver).kept_pushes(), before.kept_pushes());
  }
}

TEST(Gba, WhatAnUpdateKeepsIsBoundedByMemory) {
  Driver driver({.max_parked_bytes = 1000});
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(1, Gba(4, 100))));
  const std::vector<uint64_t> ids(20, 42);  // 240 bytes for each push
  const std::vector<float> gradients(20, 1.0f);
  absl::Status refused;
  for (uint64_t step = 0; step < 10 && refused.ok(); ++step) {
    refused = driver.Push({.step = step}, {{"user", 1, ids, gradients}}).status();
  }
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1000")));
}

TEST(Gba, AllServersGroupAlikeThoughPushesReachThemInAnyOrder) {
  constexpr uint32_t kServers = 3, kWorkers = 3;
  constexpr uint64_t kSteps = 40, kSize = 4;
  std::mt19937_64 random(5);
  Cluster cluster(kServers);
  // With Adagrad the rows show which gradients were added before they were squared.
  const v1::TableConfig config = TestTable("user", 1, kWorkers, Gba(3, kSize), Adagrad(0.1f, 0.1f));
  TANDEM_ASSERT_OK(cluster.CreateTable(config));
  // One id of each server.
  const ShardMap map = ShardMap::Even(kServers, kDefaultBuckets);
  std::vector<uint64_t> id(kServers);
  for (uint32_t s = 0; s < kServers; ++s) {
    while (map.OwnerOf(id[s]) != s) ++id[s];
    TANDEM_ASSERT_OK(cluster.server(s).Pull(0, 0, {{"user", {id[s]}}}));
  }
  struct Sent {
    PushTag tag;
    PushOf push;
  };
  std::vector<std::vector<Sent>> under_way(kServers);  // to servers other than 0
  std::vector<std::vector<float>> by_update(kServers);
  uint64_t stale = 0;
  const auto deliver = [&](uint32_t s, size_t i) {
    const Sent sent = under_way[s][i];
    under_way[s].erase(under_way[s].begin() + i);
    TANDEM_ASSERT_OK(cluster.server(s).Push(sent.tag, {sent.push}));
  };
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      const uint64_t version = cluster.server(0).Table("user").statistics().version();
      const uint64_t pulled = version - std::min<uint64_t>(version, random() % 6);
      const float gradient = static_cast<float>(random() % 1000) / 500.0f - 1.0f;
      const PushTag tag{.worker = w, .step = step};
      PushOf push{
          .table = "user", .dim = 1, .ids = {id[0]}, .gradients = {gradient}, .pulled_version = pulled};
      absl::StatusOr<v1::PushResponse> response = cluster.server(0).Push(tag, {push});
      TANDEM_ASSERT_OK(response);
      ASSERT_EQ(response->places_size(), 1);
      stale += response->places(0).stale() ? 1 : 0;
      for (uint32_t s = 1; s < kServers; ++s) {
        push.ids = {id[s]};
        push.pulled_version = 0;  // only server 0 uses it
        push.place = response->places(0);
        under_way[s].push_back({tag, push});
        // Up to two updates arrive in any order.
        const bool enough = under_way[s].size() >= 2 * kSize;
        while (enough && !under_way[s].empty()) deliver(s, random() % under_way[s].size());
      }
    }
  }
  for (uint32_t s = 1; s < kServers; ++s) {
    while (!under_way[s].empty()) deliver(s, random() % under_way[s].size());
  }
  EXPECT_GT(stale, 10);
  std::vector<float> moved;
  for (uint32_t s = 0; s < kServers; ++s) {
    const v1::TableStatistics statistics = cluster.server(s).Table("user").statistics();
    EXPECT_EQ(statistics.version(), kSteps * kWorkers / kSize);
    EXPECT_EQ(statistics.stale_pushes(), stale);
    EXPECT_EQ(statistics.kept_pushes(), 0);
    EXPECT_EQ(statistics.pushed_rows(), kSteps * kWorkers - stale);
  }
  // All rows got the same gradients in the same updates. They started equal, so they must end equal.
  std::vector<float> end;
  for (uint32_t s = 0; s < kServers; ++s) {
    Driver fresh;
    TANDEM_ASSERT_OK(fresh.CreateTable(TestTable("user", 1, 1, Async(), Adagrad(0.1f, 0.1f))));
    const absl::StatusOr<Rows> first = fresh.Pull(0, 0, {{"user", {id[s]}}});
    const absl::StatusOr<Rows> last = cluster.server(s).Pull(0, 0, {{"user", {id[s]}}});
    TANDEM_ASSERT_OK(first);
    TANDEM_ASSERT_OK(last);
    end.push_back(last->slices[0][0] - first->slices[0][0]);
  }
  EXPECT_NE(end[0], 0.0f);
  for (uint32_t s = 1; s < kServers; ++s) EXPECT_NEAR(end[s], end[0], 1e-5);
}

// --- All changes of mode, while workers pull and push.

TEST(ModeChanges, EveryTransitionUnderLoadLosesNothingAndAppliesNothingTwice) {
  constexpr uint32_t kWorkers = 3;
  constexpr uint64_t kSteps = 60;
  const v1::UpdateMode modes[] = {Sync(), Bounded(3), Async(), Gba(1000), Gba(1000, 5), Gba(1, 2)};
  for (const v1::UpdateMode& from : modes) {
    for (const v1::UpdateMode& to : modes) {
      SCOPED_TRACE(FormatUpdateMode(from) + " and " + FormatUpdateMode(to));
      Driver driver;
      TANDEM_ASSERT_OK(driver.CreateTable(SumTable(kWorkers, from)));
      TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
      absl::Mutex mutex;
      uint64_t pushed = 0;
      std::vector<std::thread> workers;
      for (uint32_t w = 0; w < kWorkers; ++w) {
        workers.emplace_back([&, w] {
          for (uint64_t step = 0; step < kSteps; ++step) {
            const absl::StatusOr<Rows> rows = driver.Pull(w, step, {{"user", {42, w}}});
            TANDEM_CHECK_MSG(rows.ok(), rows.status().ToString());
            const absl::Status done =
                driver.Push({.worker = w, .step = step}, {One(1, rows->versions[0])}).status();
            TANDEM_CHECK_MSG(done.ok(), done.ToString());
            absl::MutexLock lock(&mutex);
            ++pushed;
          }
        });
      }
      for (uint64_t change = 0; change < 6; ++change) {
        const uint64_t when = (change + 1) * kWorkers * kSteps / 7;
        {
          absl::MutexLock lock(&mutex);
          const auto enough = [&] { return pushed >= when; };
          mutex.Await(absl::Condition(&enough));
        }
        TANDEM_EXPECT_OK(driver.SetUpdateMode("user", change % 2 == 0 ? to : from));
      }
      for (std::thread& worker : workers) worker.join();
      TANDEM_EXPECT_OK(driver.SetUpdateMode("user", Async()));
      const v1::TableStatistics statistics = StatisticsOf(driver);
      EXPECT_EQ(Read(driver),
                -static_cast<float>(kWorkers * kSteps) + static_cast<float>(statistics.stale_pushes()));
      EXPECT_EQ(statistics.pushed_rows() + statistics.stale_pushes(), kWorkers * kSteps);
      EXPECT_EQ(statistics.pushes(), kWorkers * kSteps);
      EXPECT_EQ(statistics.kept_pushes(), 0);
      EXPECT_EQ(statistics.kept_bytes(), 0);
      EXPECT_EQ(driver.server().parked_calls(), 0);
    }
  }
}

}  // namespace
}  // namespace tandem::ps::testing
