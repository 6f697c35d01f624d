// SPDX-License-Identifier: Apache-2.0
// The update modes: when pulls wait, when pushes are applied, and the rows that result.

#include <algorithm>
#include <cmath>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/server/driver.h"
#include "tests/ps/server/table/sum_table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(UpdateModes, SyncAppliesAStepWhenEveryWorkerHasPushedIt) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1)}));
  EXPECT_EQ(Read(driver), 0.0f);
  auto waiting = driver.StartPull(0, 1, {{"user", {42}}});
  EXPECT_FALSE(waiting->answered());
  EXPECT_EQ(driver.server().parked_calls(), 1);
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(2)}));
  absl::StatusOr<Rows> rows = ParseRows(waiting->Wait());
  TANDEM_ASSERT_OK(rows);
  EXPECT_THAT(rows->slices[0], ElementsAre(-3.0f));
  EXPECT_EQ(rows->versions[0], 1);
  EXPECT_EQ(driver.server().parked_calls(), 0);
}

TEST(UpdateModes, SyncAddsGradientsInRankOrderWhateverTheOrderOfArrival) {
  // (1e8 + 1) - 1e8 is 0 in floats; in any other order the sum is 1.
  const float gradients[] = {1e8f, 1.0f, -1e8f};
  std::vector<uint32_t> order = {0, 1, 2};
  do {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(SumTable(3, Sync())));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
    for (uint32_t worker : order) TANDEM_ASSERT_OK(driver.Push({.worker = worker}, {One(gradients[worker])}));
    EXPECT_EQ(Read(driver, 1), 0.0f);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(UpdateModes, SyncUsesTheLearningRateFactorOfTheLowestRank) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .learning_rate_factor = 10.0f}, {One(1)}));
  // Rank 0 pushes no row to this server, but its factor is used: it may push rows to another server.
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .learning_rate_factor = 0.5f}, {{"user", 1, {}, {}}}));
  EXPECT_EQ(Read(driver, 1), -0.5f);
}

TEST(UpdateModes, BoundedLetsAWorkerRunAheadByItsStaleness) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Bounded(2))));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  for (uint64_t step = 0; step < 3; ++step)
    TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = step}, {One(1)}));
  EXPECT_EQ(Read(driver, 2), -3.0f);  // applied on arrival
  auto waiting = driver.StartPull(0, 3, {{"user", {42}}});
  EXPECT_FALSE(waiting->answered());
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(1)}));
  absl::StatusOr<Rows> rows = ParseRows(waiting->Wait());
  TANDEM_ASSERT_OK(rows);
  EXPECT_THAT(rows->slices[0], ElementsAre(-4.0f));
}

TEST(UpdateModes, AsyncNeverWaitsAndTakesStepsInAnyOrder) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Async())));
  TANDEM_ASSERT_OK(driver.Pull(0, 1000, {{"user", {42}}}));
  uint64_t sequence = 0;
  for (uint64_t step : {5, 3, 3, 900}) {
    TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = step, .sequence = ++sequence}, {One(1)}));
  }
  EXPECT_EQ(Read(driver, 1000), -4.0f);
}

TEST(UpdateModes, ReadOnlyPullsWaitOnSyncTablesAndCreateNoRow) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(1, Sync())));
  auto waiting = driver.StartPull(0, 1, {{"user", {42, 43}}}, /*read_only=*/true);
  EXPECT_FALSE(waiting->answered());
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {{"user", 1, {}, {}}}));
  TANDEM_ASSERT_OK(waiting->Wait());
  const v1::TableInfo info = driver.Table("user");
  EXPECT_EQ(info.statistics().rows(), 0);
  EXPECT_EQ(info.statistics().pulled_rows(), 0);
  EXPECT_EQ(info.statistics().version(), 1);
}

TEST(UpdateModes, APullOfSeveralTablesWaitsForAllOfThem) {
  Driver driver;
  v1::TableConfig item = SumTable(2, Sync());
  item.set_name("item");
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  TANDEM_ASSERT_OK(driver.CreateTable(item));
  auto waiting = driver.StartPull(0, 1, {{"user", {1}}, {"item", {1}}, {"user", {2}}});
  const auto push = [&](uint32_t worker, const std::string& table, uint64_t sequence) {
    TANDEM_ASSERT_OK(driver.Push({.worker = worker, .step = 0, .sequence = sequence}, {{table, 1, {}, {}}}));
  };
  push(0, "user", 1);
  push(1, "user", 1);
  EXPECT_FALSE(waiting->answered());
  push(0, "item", 2);
  EXPECT_FALSE(waiting->answered());
  push(1, "item", 2);
  TANDEM_EXPECT_OK(waiting->Wait());
}

TEST(UpdateModes, APullThatWaitsTooLongSaysForWhom) {
  SimulatedClock clock;
  Driver driver({.clock = &clock});
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(3, Sync())));
  TANDEM_ASSERT_OK(driver.Push({.worker = 2, .step = 0}, {One(1)}));
  auto waiting = driver.StartPull(0, 1, {{"user", {42}}}, false, clock.Now() + absl::Seconds(10));
  EXPECT_FALSE(waiting->answered());
  clock.Advance(absl::Seconds(10));
  EXPECT_THAT(
      waiting->Wait(),
      StatusIs(
          absl::StatusCode::kDeadlineExceeded,
          "table 'user': pull of step 1 by worker 0 waits for the push of step 0 from worker 0, the push of "
          "step 0 from worker 1 (sync)"));
  EXPECT_EQ(driver.server().parked_calls(), 0);
  // The table continues to work, and the end of the step finds no waiting pull.
  for (uint32_t worker : {0, 1}) TANDEM_ASSERT_OK(driver.Push({.worker = worker, .step = 0}, {One(1)}));
  TANDEM_ASSERT_OK(driver.Pull(0, 1, {{"user", {42}}}));
}

TEST(UpdateModes, ABoundedPullThatWaitsTooLongNamesTheStepItNeeds) {
  SimulatedClock clock;
  Driver driver({.clock = &clock});
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Bounded(2))));
  for (uint64_t step = 0; step < 9; ++step)
    TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = step}, {One(1)}));
  auto waiting = driver.StartPull(0, 9, {{"user", {42}}}, false, clock.Now() + absl::Seconds(1));
  clock.Advance(absl::Seconds(1));
  EXPECT_THAT(waiting->Wait(),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       HasSubstr("waits for the push of step 0 from worker 1 (bounded, staleness 2)")));
}

TEST(UpdateModes, StopAnswersWhatWaitsAndRefusesWhatComes) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  auto waiting = driver.StartPull(0, 1, {{"user", {42}}});
  driver.server().Stop();
  EXPECT_THAT(waiting->Wait(), StatusIs(absl::StatusCode::kCancelled));
  EXPECT_THAT(driver.Pull(0, 0, {{"user", {42}}}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(driver.Push({}, {One(1)}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(driver.CreateTable(SumTable(2, Sync())), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(UpdateModes, PushesThatOvertakeOthersAreKeptUntilTheirTurn) {
  for (const v1::UpdateMode& mode : {Sync(), Bounded(1)}) {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(SumTable(1, mode)));
    TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
    TANDEM_ASSERT_OK(driver.Push({.step = 2}, {One(4)}));
    TANDEM_ASSERT_OK(driver.Push({.step = 1}, {One(2)}));
    EXPECT_EQ(Read(driver), 0.0f);
    TANDEM_ASSERT_OK(driver.Push({.step = 0}, {One(1)}));
    EXPECT_EQ(Read(driver, 3), -7.0f);
    EXPECT_EQ(driver.Table("user").statistics().version(), 3);
  }
}

TEST(UpdateModes, AStepPushedTwiceOrFarAheadIsRefused) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  TANDEM_ASSERT_OK(driver.Push({.step = 0, .sequence = 1}, {One(1)}));
  EXPECT_THAT(
      driver.Push({.step = 0, .sequence = 2}, {One(1)}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("worker 0"), HasSubstr("push of step 0"), HasSubstr("already pushed"))));
  EXPECT_THAT(driver.Push({.step = 1000, .sequence = 2}, {One(1)}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("step 1000"), HasSubstr("step 1 is next"))));
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(1)}));
  EXPECT_THAT(driver.Push({.step = 0, .sequence = 2}, {One(1)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("next is step 1")));
}

TEST(UpdateModes, LeavingSyncAppliesWhatWasKept) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(3, Sync())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 2, .step = 0}, {One(-1e8f)}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1e8f)}));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 1}, {One(1)}));
  auto waiting = driver.StartPull(0, 2, {{"user", {42}}});
  EXPECT_FALSE(waiting->answered());
  TANDEM_ASSERT_OK(driver.SetUpdateMode("user", Async()));
  absl::StatusOr<Rows> rows = ParseRows(waiting->Wait());
  TANDEM_ASSERT_OK(rows);
  // The order must be: step 0 of rank 0, step 0 of rank 2, step 1 of rank 0. Only then the 1 is not lost.
  EXPECT_THAT(rows->slices[0], ElementsAre(-1.0f));
  EXPECT_EQ(rows->versions[0], 3);
  EXPECT_EQ(driver.Table("user").config().update_mode().kind(), v1::UpdateMode::ASYNC);
}

TEST(UpdateModes, EnteringSyncLetsWorkersCatchUpThenMerges) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Bounded(4))));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  for (uint64_t step = 0; step < 2; ++step)
    TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = step}, {One(1)}));
  TANDEM_ASSERT_OK(driver.SetUpdateMode("user", Sync()));
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 2}, {One(10)}));  // waits: worker 1 is behind
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 0}, {One(1)}));   // on arrival
  auto of_step_2 = driver.StartPull(0, 2, {{"user", {42}}});
  EXPECT_FALSE(of_step_2->answered());
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 1}, {One(1)}));
  absl::StatusOr<Rows> rows = ParseRows(of_step_2->Wait());
  TANDEM_ASSERT_OK(rows);
  EXPECT_THAT(rows->slices[0], ElementsAre(-4.0f));
  EXPECT_EQ(rows->versions[0], 4);
  TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = 2}, {One(10)}));  // merged
  EXPECT_EQ(Read(driver, 3), -24.0f);
  EXPECT_EQ(driver.Table("user").statistics().version(), 5);
}

TEST(UpdateModes, AnAsyncPushThatIsOvertakenByTheSwitchToSyncStillCounts) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(1, Async())));
  TANDEM_ASSERT_OK(driver.Pull(0, 0, {{"user", {42}}}));
  TANDEM_ASSERT_OK(driver.Push({.step = 0}, {One(1)}));
  TANDEM_ASSERT_OK(driver.Push({.step = 2}, {One(1)}));
  TANDEM_ASSERT_OK(driver.SetUpdateMode("user", Sync()));
  TANDEM_ASSERT_OK(driver.Push({.step = 1}, {One(1)}));
  EXPECT_EQ(Read(driver, 3), -3.0f);
  EXPECT_THAT(driver.Push({.step = 1, .sequence = 9}, {One(1)}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(UpdateModes, StalenessIsTheUpdatesBetweenAPullAndItsPush) {
  Driver driver;
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Async())));
  absl::StatusOr<Rows> first = driver.Pull(0, 0, {{"user", {42}}});
  TANDEM_ASSERT_OK(first);
  for (uint64_t step = 0; step < 3; ++step) {
    TANDEM_ASSERT_OK(driver.Push({.worker = 1, .step = step}, {One(1, step)}));
  }
  TANDEM_ASSERT_OK(driver.Push({.worker = 0, .step = 0}, {One(1, first->versions[0])}));
  const v1::TableStatistics statistics = driver.Table("user").statistics();
  ASSERT_EQ(statistics.staleness_histogram_size(), 64);
  EXPECT_EQ(statistics.staleness_histogram(0), 3);
  EXPECT_EQ(statistics.staleness_histogram(3), 1);
  EXPECT_EQ(statistics.staleness_max(), 3);
  EXPECT_DOUBLE_EQ(statistics.staleness_mean(), 0.75);
  EXPECT_EQ(statistics.pushed_rows(), 4);
}

TEST(UpdateModes, WorkersThatRunFarAheadAreRefusedBeforeMemoryRunsOut) {
  Driver driver({.max_parked_bytes = 1000});
  TANDEM_ASSERT_OK(driver.CreateTable(SumTable(2, Sync())));
  const std::vector<uint64_t> ids(20,
                                  42);  // a push of 240 bytes; 400 with the copy of its ids while it waits
  const std::vector<float> gradients(20, 1.0f);
  uint64_t step = 0;
  absl::Status refused;
  for (; step < 10; ++step) {
    refused = driver.Push({.worker = 0, .step = step}, {{"user", 1, ids, gradients}}).status();
    if (!refused.ok()) break;
  }
  EXPECT_EQ(step, 2);
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kResourceExhausted,
                                AllOf(HasSubstr("hold 800 bytes"), HasSubstr("1000"))));
  EXPECT_THAT(driver.StartPull(0, 3, {{"user", ids}})->Wait(),
              StatusIs(absl::StatusCode::kResourceExhausted));
  // The push of the worker that is behind is accepted, and frees memory.
  TANDEM_EXPECT_OK(driver.Push({.worker = 1, .step = 0}, {{"user", 1, ids, gradients}}));
  TANDEM_EXPECT_OK(driver.Push({.worker = 0, .step = step}, {{"user", 1, ids, gradients}}));
}

TEST(UpdateModes, ManyWorkersAtOnceLoseNoUpdate) {
  constexpr uint32_t kWorkers = 4;
  constexpr uint64_t kSteps = 50;
  for (const v1::UpdateMode& mode : {Sync(), Bounded(3), Async()}) {
    Driver driver;
    TANDEM_ASSERT_OK(driver.CreateTable(SumTable(kWorkers, mode)));
    std::vector<std::thread> workers;
    for (uint32_t w = 0; w < kWorkers; ++w) {
      workers.emplace_back([&driver, w] {
        for (uint64_t step = 0; step < kSteps; ++step) {
          const absl::StatusOr<Rows> rows = driver.Pull(w, step, {{"user", {42, w}}});
          TANDEM_CHECK_MSG(rows.ok(), rows.status().ToString());
          const absl::Status pushed =
              driver.Push({.worker = w, .step = step}, {One(1, rows->versions[0])}).status();
          TANDEM_CHECK_MSG(pushed.ok(), pushed.ToString());
        }
      });
    }
    for (std::thread& worker : workers) worker.join();
    EXPECT_EQ(Read(driver, kSteps), -float{kWorkers * kSteps});
    if (mode.kind() == v1::UpdateMode::SYNC) {
      EXPECT_EQ(driver.Table("user").statistics().staleness_max(), 0);
    }
    EXPECT_EQ(driver.server().parked_calls(), 0);
  }
}

}  // namespace
}  // namespace tandem::ps::testing
