// SPDX-License-Identifier: Apache-2.0
#include "ps/replicated/replicated_tables.h"

#include <map>
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
constexpr double kDelay = 5;  // steps by which gradients will be late

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
           .first_interval = 40,
           .expected_delay = kDelay},
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

TEST_F(ReplicatedTablesTest, AStartIsInModeSyncAndItsChoiceIsByTheCountsOfAllWorkersAndTheExpectedDelay) {
  rows_.delay = 0;  // nothing is late in the start, so the servers find no row
  static constexpr uint64_t kSteps = 40;
  std::map<uint64_t, int> model;
  OnAll([](int, ReplicatedTables* tables) {
    TANDEM_EXPECT_OK(tables->BeginStart());
    EXPECT_TRUE(tables->starting());
    EXPECT_EQ(tables->NextChange(0), kSteps);
  });
  EXPECT_THAT(rows_.modes(), ElementsAre(v1::UpdateMode::SYNC));
  // Worker 0's batch of step s contains id i if i divides s, worker 1's if i + 3 does.
  for (uint64_t step = 0; step < kSteps; ++step) {
    for (int r = 0; r < kWorkers; ++r) {
      std::vector<uint64_t> ids;
      for (uint64_t id = 1; id < 40; ++id) {
        if (step % (id + 3 * static_cast<uint64_t>(r)) == 0) ids.push_back(id);
      }
      for (const uint64_t id : ids) ++model[id];
      workers_[r]->CountBatch(0, ids);
    }
  }
  std::vector<uint64_t> stale;
  for (const auto& [id, count] : model) {
    const double rate = count / static_cast<double>(kSteps * kWorkers);
    if (rate * kDelay * kWorkers > 1) stale.push_back(id);
  }
  ASSERT_GT(stale.size(), 3u);
  ASSERT_LT(stale.size(), 30u);
  OnAll([](int, ReplicatedTables* tables) {
    TANDEM_EXPECT_OK(tables->Change(kSteps).status());
    EXPECT_FALSE(tables->starting());
  });
  EXPECT_THAT(rows_.modes(), ElementsAre(v1::UpdateMode::SYNC, v1::UpdateMode::ASYNC));
  for (const auto& worker : workers_) {
    EXPECT_THAT(worker->ids()[0], ::testing::UnorderedElementsAreArray(stale));
  }
  // From now on the servers' measurements count.
  rows_.delay = 8;
  rows_.hot = {{1000, 4.0}};
  OnAll([](int, ReplicatedTables* tables) {
    tables->CountBatch(0, {2000});
    TANDEM_EXPECT_OK(tables->Change(3 * kSteps).status());
  });
  EXPECT_TRUE(workers_[0]->table(0)->Find(1000) != ReplicatedRows::kAbsent);
  EXPECT_TRUE(workers_[0]->table(0)->Find(2000) == ReplicatedRows::kAbsent);
  EXPECT_EQ(rows_.modes().size(), 2u);
}

TEST_F(ReplicatedTablesTest, RestoredRowsThatAreUpdatedOftenStayWhenTheStartOfAResumedRunEnds) {
  rows_.delay = 0;
  OnAll([](int, ReplicatedTables* tables) {
    TANDEM_EXPECT_OK(tables->Restore({{3, 4}}));
    TANDEM_EXPECT_OK(tables->BeginStart());
    EXPECT_EQ(tables->NextChange(1000), 1040u);
  });
  for (uint64_t step = 1000; step < 1040; ++step) Step({3}, step);
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->Change(1040).status()); });
  for (const auto& worker : workers_) EXPECT_THAT(worker->table(0)->ids(), ElementsAre(3));
}

TEST_F(ReplicatedTablesTest, ARunThatEndsInItsStartLeavesTheTablesInTheirOwnMode) {
  OnAll([](int, ReplicatedTables* tables) {
    TANDEM_EXPECT_OK(tables->EndStart());  // there is no start yet
    TANDEM_EXPECT_OK(tables->BeginStart());
    tables->CountBatch(0, {1});
    TANDEM_EXPECT_OK(tables->EndStart());
    EXPECT_FALSE(tables->starting());
    TANDEM_EXPECT_OK(tables->EndStart());
  });
  EXPECT_THAT(rows_.modes(), ElementsAre(v1::UpdateMode::SYNC, v1::UpdateMode::ASYNC));
  EXPECT_EQ(workers_[0]->table(0)->size(), 0u);
}

TEST_F(ReplicatedTablesTest, TablesWithoutReplicatedRowsStartSynchronouslyAndThenNeverChange) {
  FakeRows sharded(Config()), cached(Config());
  FakeRowHome home({{"sharded", &sharded}, {"cached", &cached}});
  std::vector<ReplicatedTableOptions> options = {{.config = Config(), .replicated = false},
                                                 {.config = Config(), .replicated = false}};
  options[0].config.set_name("sharded");
  options[1].config.set_name("cached");
  options[1].starts_synchronously = false;
  TANDEM_ASSERT_OK_AND_ASSIGN(auto tables,
                              ReplicatedTables::Create(std::move(options), {.first_interval = 40}, &home));
  TANDEM_ASSERT_OK(tables->BeginStart());
  EXPECT_EQ(tables->NextChange(0), 40u);
  tables->CountBatch(0, {1, 2, 3});
  TANDEM_ASSERT_OK(tables->Change(40).status());
  EXPECT_FALSE(tables->starting());
  EXPECT_EQ(tables->NextChange(40), ~uint64_t{0});
  EXPECT_THAT(sharded.modes(), ElementsAre(v1::UpdateMode::SYNC, v1::UpdateMode::ASYNC));
  EXPECT_THAT(cached.modes(), ::testing::IsEmpty());
}

TEST_F(ReplicatedTablesTest, AServerThatDoesNotChangeItsModeEndsTheStartInAllWorkers) {
  const auto fail = [this] { rows_.mode_error = absl::UnavailableError("server 1 does not respond"); };
  fail();
  OnAll([](int rank, ReplicatedTables* tables) {
    EXPECT_THAT(tables->BeginStart(),
                StatusIs(rank == 0 ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted,
                         HasSubstr("starting synchronously: server 1 does not respond")));
  });
  rows_.mode_error = absl::OkStatus();
  OnAll([](int, ReplicatedTables* tables) { TANDEM_EXPECT_OK(tables->BeginStart()); });
  fail();
  OnAll([](int rank, ReplicatedTables* tables) {
    EXPECT_THAT(tables->Change(40).status(),
                StatusIs(rank == 0 ? absl::StatusCode::kUnavailable : absl::StatusCode::kAborted,
                         HasSubstr("ending the synchronous start: server 1 does not respond")));
  });
}

}  // namespace
}  // namespace tandem::ps
