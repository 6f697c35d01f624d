// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/replicated_tables.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/ps/replicated/fake_row_home.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::FakeRowHome;
using ::tandem::testing::FakeRows;
using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr int kWorkers = 2;

v1::TableConfig Config() {
  v1::TableConfig config = EmbeddingTable("t", 2, Adagrad(0.1f), Normal(0, 0.1f));
  config.set_num_workers(kWorkers);
  *config.mutable_update_mode() = Async();
  return config;
}

// An all-gather between the threads of a test.
class Exchange {
 public:
  std::vector<std::string> AllGather(int rank, absl::string_view bytes) {
    absl::MutexLock lock(&mutex_);
    const int round = round_;
    now_[rank] = std::string(bytes);
    if (++arrived_ == kWorkers) {
      last_ = now_;
      arrived_ = 0;
      ++round_;
    } else {
      auto over = [&]() { return round_ != round; };
      mutex_.Await(absl::Condition(&over));
    }
    return last_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::string> now_ = std::vector<std::string>(kWorkers), last_;
  int arrived_ = 0, round_ = 0;
};

class ReplicatedTablesTest : public ::testing::Test {
 protected:
  ReplicatedTablesTest() {
    for (int r = 0; r < kWorkers; ++r) {
      homes_.push_back(std::make_unique<FakeRowHome>(std::map<std::string, FakeRows*>{{"t", &rows_}}));
      auto tables = ReplicatedTables::Create(
          {{.config = Config()}},
          {.rank = r,
           .world_size = kWorkers,
           .all_gather = [this, r](absl::string_view bytes) { return exchange_.AllGather(r, bytes); },
           .first_interval = 40},
          homes_.back().get());
      EXPECT_THAT(tables, tandem::testing::IsOk());
      workers_.push_back(*std::move(tables));
    }
  }
  // Runs `body` in every worker's thread.
  template <typename Body>
  void OnAll(const Body& body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < kWorkers; ++r) threads.emplace_back([&, r] { body(r, workers_[r].get()); });
    for (std::thread& thread : threads) thread.join();
  }
  void Step(const std::vector<uint64_t>& ids, uint64_t step) {
    for (auto& worker : workers_) {
      ReplicatedRows* rows = worker->table(0);
      const float gradient[] = {0.25f, -0.5f};
      for (const uint64_t id : ids) rows->AddGradient(rows->Find(id), gradient);
    }
    std::vector<float> sum(workers_[0]->table(0)->exchange().begin(),
                           workers_[0]->table(0)->exchange().end());
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += workers_[1]->table(0)->exchange()[i];
    for (auto& worker : workers_) {
      std::copy(sum.begin(), sum.end(), worker->table(0)->exchange().begin());
      TANDEM_ASSERT_OK(worker->Apply(step, 1.0f));
    }
  }

  FakeRows rows_{Config()};
  Exchange exchange_;
  std::vector<std::unique_ptr<FakeRowHome>> homes_;
  std::vector<std::unique_ptr<ReplicatedTables>> workers_;
};

TEST_F(ReplicatedTablesTest, HotRowsJoinAndColdOnesGoBackWithTheirState) {
  rows_.hot = {{10, 8.0}, {11, 4.0}};
  OnAll([](int, ReplicatedTables* tables) {
    const absl::StatusOr<SetChange> changed = tables->Change(24);
    TANDEM_EXPECT_OK(changed.status());
    EXPECT_EQ(changed.value_or(SetChange()).joined, 2u);
  });
  for (const auto& worker : workers_) EXPECT_THAT(worker->table(0)->ids(), ElementsAre(10, 11));
  rows_.hot.clear();
  // Only one of the two rows is updated from now on, so the other one leaves.
  const FakeRows::Row before = rows_.Get(11);
  Step({10, 11}, 24);
  for (uint64_t step = 25; step < 60; ++step) Step({10}, step);
  const FakeRows::Row moved = {{workers_[0]->table(0)->weights(1)[0], workers_[0]->table(0)->weights(1)[1]},
                               workers_[0]->table(0)->Read({1}).state};
  EXPECT_EQ(rows_.Get(11), before);  // the servers' copy is the old one until the row moves
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Change(60).status()); });
  for (const auto& worker : workers_) EXPECT_THAT(worker->table(0)->ids(), ElementsAre(10));
  EXPECT_EQ(rows_.Get(11), moved);
  EXPECT_EQ(workers_[0]->statistics(0).left, 1u);
  EXPECT_EQ(workers_[0]->table(0)->Read({0}).weights, workers_[1]->table(0)->Read({0}).weights);
}

TEST_F(ReplicatedTablesTest, WantedIdsOfEveryWorkerJoinAndUnwantedOnesNever) {
  rows_.hot = {{1, 8.0}, {2, 8.0}};
  OnAll([](int rank, ReplicatedTables* tables) {
    tables->RememberUnwanted(0, {2});
    tables->RememberWanted(0, {100 + static_cast<uint64_t>(rank), 50});
    TANDEM_EXPECT_OK(tables->Change(24).status());
  });
  EXPECT_THAT(workers_[0]->table(0)->ids(), UnorderedElementsAre(1, 50, 100, 101));
  EXPECT_EQ(workers_[0]->ids(), workers_[1]->ids());
  // Wanted rows stay without any update.
  rows_.hot.clear();
  Step({1}, 24);
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Change(72).status()); });
  EXPECT_THAT(workers_[1]->table(0)->ids(), UnorderedElementsAre(1, 50, 100, 101));
}

TEST_F(ReplicatedTablesTest, AnErrorOfTheServersEndsTheChangeInAllWorkers) {
  rows_.hot = {{1, 8.0}};
  rows_.error = absl::UnavailableError("server 1 does not respond");
  OnAll([](int, ReplicatedTables* tables) {
    EXPECT_THAT(tables->Change(24).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("server 1 does not respond")));
  });
}

TEST_F(ReplicatedTablesTest, ACheckpointHasTheReplicasAndRestoreTakesItsRows) {
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Restore({{3, 4}})); });
  Step({3, 4}, 0);
  TANDEM_ASSERT_OK(workers_[0]->WriteBack());
  const FakeRows::Row saved = rows_.Get(3);
  EXPECT_EQ(saved.weights[0], workers_[1]->table(0)->weights(0)[0]);
  Step({3}, 1);
  EXPECT_NE(saved.weights[0], workers_[1]->table(0)->weights(0)[0]);
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Restore(tables->ids())); });
  EXPECT_EQ(saved.weights[0], workers_[1]->table(0)->weights(0)[0]);
  EXPECT_THAT(workers_[1]->table(0)->ids(), ElementsAre(3, 4));
}

TEST_F(ReplicatedTablesTest, ARestoredRowStaysWithoutUpdatesIfSomeWorkerWantsIt) {
  OnAll([](int rank, ReplicatedTables* tables) {
    TANDEM_EXPECT_OK(tables->Restore({{3, 4}}));
    EXPECT_FALSE(tables->IsWanted(0, 0));
    if (rank == 1) tables->RememberWanted(0, {3});
    EXPECT_EQ(tables->IsWanted(0, 0), rank == 1);
  });
  for (uint64_t step = 0; step < 40; ++step) Step({}, step);
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Change(40).status()); });
  for (const auto& worker : workers_) {
    EXPECT_THAT(worker->table(0)->ids(), ElementsAre(3));
    EXPECT_TRUE(worker->IsWanted(0, 0));
  }
}

TEST_F(ReplicatedTablesTest, AWantedRowThatARestoreRemovedJoinsAgain) {
  const auto change = [this](uint64_t step) {
    OnAll([step](int, ReplicatedTables* tables) {
      tables->RememberWanted(0, {7});
      TANDEM_EXPECT_OK(tables->Change(step).status());
    });
  };
  change(40);
  EXPECT_THAT(workers_[0]->table(0)->ids(), ElementsAre(7));
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Restore({})); });
  EXPECT_EQ(workers_[0]->table(0)->size(), 0u);
  change(120);
  EXPECT_THAT(workers_[0]->table(0)->ids(), ElementsAre(7));
}

TEST_F(ReplicatedTablesTest, ChangesComeEarlyAndThenMoreRarely) {
  ReplicatedTables& tables = *workers_[0];
  EXPECT_EQ(tables.NextChange(100), 140u);
  EXPECT_EQ(tables.NextChange(110), 140u);
  uint64_t step = 140;
  std::vector<uint64_t> steps;
  for (int i = 0; i < 6; ++i) {
    OnAll([&](int, ReplicatedTables* each) { TANDEM_EXPECT_OK(each->Change(step).status()); });
    steps.push_back(tables.NextChange(step) - step);
    step = tables.NextChange(step);
  }
  EXPECT_THAT(steps, ElementsAre(80, 160, 320, 384, 384, 384));
}

}  // namespace
}  // namespace tandem::ps
