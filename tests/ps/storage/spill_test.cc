// SPDX-License-Identifier: Apache-2.0
// Compares tables whose rows are in memory and on disk with tables whose memory has no limit. Their behaviour
// must be the same.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"
#include "ps/storage/spill/spill_store.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/ps/storage/spill/rocksdb.h"
#include "tests/ps/storage/stored_rows.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/temp_dir.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::IsOk;
using ::tandem::testing::StatusIs;
using ::tandem::testing::TempDir;
using ::testing::AllOf;
using testing::AllStoredRows;
using ::testing::HasSubstr;
using testing::MemoryDisk;
using testing::MemoryTier;
using testing::StoredRows;
using testing::StoredRowsByPages;

std::unique_ptr<TableStorage> Make(const v1::TableConfig& config, uint32_t num_buckets,
                                   std::unique_ptr<ColdTier> tier) {
  return TableStorage::Create(
      config, num_buckets, [](uint32_t) { return true; }, std::move(tier));
}

struct SpillCase {
  std::string name;
  uint32_t dim;
  uint32_t num_buckets;
  v1::OptimizerConfig optimizer;
  v1::TableConfig::RowType row_type;
  bool stochastic;
  v1::EvictionConfig eviction;
  uint64_t byte_budget;
  v1::AdmissionConfig admission = {};

  v1::TableConfig Spilling() const {
    v1::TableConfig config = Unbounded();
    config.set_byte_budget(byte_budget);
    config.set_spill(true);
    return config;
  }
  // Returns the same table with a budget that is never used up.
  v1::TableConfig Unbounded() const {
    v1::TableConfig config = EmbeddingTable("t", dim, optimizer, Uniform(-1, 1));
    config.set_seed(11);
    config.set_row_type(row_type);
    config.set_stochastic_rounding(stochastic);
    *config.mutable_admission() = admission;
    *config.mutable_eviction() = eviction;
    config.set_byte_budget(uint64_t{1} << 40);
    return config;
  }
};

void PrintTo(const SpillCase& c, std::ostream* out) { *out << c.name; }

std::vector<SpillCase> SpillCases() {
  constexpr auto kF16 = v1::TableConfig::F16;
  constexpr auto kBf16 = v1::TableConfig::BF16;
  constexpr auto kF32 = v1::TableConfig::F32;
  return {{"LruF32", 16, 16, Adagrad(0.1f), kF32, false, EvictLru(), 64 << 10},
          {"LruBf16Adam", 17, 64, Adam(0.1f), kBf16, true, EvictLru(), 128 << 10},
          {"LfuF16", 3, 1, RowwiseAdagrad(0.1f), kF16, true, EvictLfu(), 64 << 10},
          {"LfuF32", 8, 8, Ftrl(0.1f), kF32, false, EvictLfu(), 64 << 10},
          {"L2NormBf16", 9, 16, Adagrad(0.1f), kBf16, false, EvictL2Norm(), 64 << 10},
          {"L2NormF32CountAdmission", 8, 4, Sgd(0.1f), kF32, false, EvictL2Norm(), 64 << 10,
           AdmitAfter(2, 20000)},
          {"LruF16ProbabilityAdmission", 8, 4, Adagrad(0.1f), kF16, false, EvictLru(), 64 << 10,
           AdmitWithProbability(0.4f)}};
}

// The tests run with the map tier and with RocksDB.
class SpillModelTest : public ::testing::TestWithParam<std::tuple<SpillCase, bool>> {
 protected:
  void SetUp() override {
    if (on_disk()) TANDEM_SKIP_WITHOUT_ROCKSDB();
  }
  bool on_disk() const { return std::get<1>(GetParam()); }
  std::unique_ptr<ColdTier> NewTier() {
    if (!on_disk()) return std::make_unique<MemoryTier>(&disk_);
    return *store_.NewTier("t");
  }
  std::unique_ptr<TableStorage> Reloaded(const v1::TableConfig& config, uint32_t num_buckets,
                                         TableStorage* from) {
    auto to = Make(config, num_buckets, config.spill() ? NewTier() : nullptr);
    for (uint32_t b = 0; b < num_buckets; ++b) {
      TANDEM_EXPECT_OK(from->VisitBucket(b, [&](uint64_t id, const float* row, const RowHistory& history) {
        TANDEM_EXPECT_OK(to->Restore(id, row, history));
      }));
      const std::string filter = from->SaveFilter(b);
      if (!filter.empty()) {
        EXPECT_TRUE(to->RestoreFilter(b, filter));
      }
    }
    to->SetClock(from->clock());
    return to;
  }

  TempDir dir_;
  MemoryDisk disk_;
  SpillStore store_{{.directory = dir_.File("spill"), .cache_bytes = size_t{1} << 20}};
};
INSTANTIATE_TEST_SUITE_P(Spill, SpillModelTest,
                         ::testing::Combine(::testing::ValuesIn(SpillCases()), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  (std::get<1>(info.param) ? "OnRocksDb" : "InAMap");
                         });

TEST_P(SpillModelTest, BehavesLikeATableWithoutABoundOverALongRandomSequence) {
  const SpillCase& c = std::get<0>(GetParam());
  TANDEM_ASSERT_OK(ValidateTableConfig(c.Spilling()));
  const uint32_t num_buckets = c.num_buckets;
  std::unique_ptr<TableStorage> table = Make(c.Spilling(), num_buckets, NewTier());
  std::unique_ptr<TableStorage> model = Make(c.Unbounded(), num_buckets, nullptr);
  uint64_t most_spilled = 0, reads = 0;
  CounterRandom random(/*seed=*/3, c.dim);
  for (int operation = 0; operation < 120; ++operation) {
    std::vector<uint64_t> ids(random.Below(operation % 5 == 0 ? 2000 : 200));
    for (uint64_t& id : ids) {
      id = random.Below(3) == 0 ? random.Below(8) : random.Below(8000) * 0x100000001ull;
    }
    const uint64_t choice = random.Below(20);
    std::vector<float> got(ids.size() * c.dim), want(ids.size() * c.dim);
    if (choice < 7) {
      const bool create = choice < 5;
      TANDEM_ASSERT_OK(table->Gather(ids, create, got.data()));
      TANDEM_ASSERT_OK(model->Gather(ids, create, want.data()));
      ASSERT_EQ(got, want) << "operation " << operation;
    } else if (choice < 10) {
      std::vector<uint32_t> cached(ids.size());
      for (uint32_t& version : cached) {
        version = static_cast<uint32_t>(random.Below(3) == 0 ? 0 : random.Below(table->clock() + 1));
      }
      const uint64_t max_age = random.Below(20);
      const bool create = random.Below(2) == 0;
      std::vector<uint8_t> got_sent((ids.size() + 7) / 8), want_sent(got_sent.size());
      TANDEM_ASSERT_OK_AND_ASSIGN(const size_t rows, table->GatherNewer(ids, cached.data(), max_age, create,
                                                                        got.data(), got_sent.data()));
      ASSERT_EQ(rows,
                *model->GatherNewer(ids, cached.data(), max_age, create, want.data(), want_sent.data()));
      ASSERT_EQ(got_sent, want_sent) << "operation " << operation;
      got.resize(rows * c.dim);
      want.resize(rows * c.dim);
      ASSERT_EQ(got, want) << "operation " << operation;
    } else if (choice < 18) {
      for (float& g : got) g = random.Uniform() - 0.5f;
      TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t missing, table->Apply(ids, got.data(), {}));
      ASSERT_EQ(missing, *model->Apply(ids, got.data(), {})) << operation;
    } else if (choice == 18) {
      most_spilled = std::max(most_spilled, table->Statistics().spilled_rows);
      reads += table->Statistics().spill_reads;
      table = Reloaded(c.Spilling(), num_buckets, table.get());
      model = Reloaded(c.Unbounded(), num_buckets, model.get());
    } else if (operation % 8 == 0) {
      table->Clear();
      model->Clear();
    } else {
      // Rows move to a worker and come back changed.
      const size_t floats = table->row_floats();
      std::vector<float> states(ids.size() * floats), want_states(states.size());
      std::vector<uint8_t> exists(ids.size()), want_exists(ids.size());
      TANDEM_ASSERT_OK(table->ReadRows(ids, states.data(), exists.data()));
      TANDEM_ASSERT_OK(model->ReadRows(ids, want_states.data(), want_exists.data()));
      ASSERT_EQ(states, want_states) << "operation " << operation;
      ASSERT_EQ(exists, want_exists);
      for (float& value : states) value += 0.25f;
      TANDEM_ASSERT_OK(table->WriteRows(ids, states.data()));
      TANDEM_ASSERT_OK(model->WriteRows(ids, states.data()));
    }
    ASSERT_EQ(table->rows(), model->rows()) << "operation " << operation;
    if (operation % 40 == 39) {
      ASSERT_EQ(AllStoredRows(table.get(), num_buckets), AllStoredRows(model.get(), num_buckets));
    }
  }
  ASSERT_EQ(AllStoredRows(table.get(), num_buckets), AllStoredRows(model.get(), num_buckets));
  for (const size_t page : {7, 100000}) {
    ASSERT_EQ(StoredRowsByPages(table.get(), num_buckets, page), AllStoredRows(model.get(), num_buckets));
  }
  const StorageStatistics statistics = table->Statistics();
  EXPECT_EQ(statistics.rows + statistics.spilled_rows, table->rows());
  EXPECT_EQ(statistics.evicted_rows, 0);
  EXPECT_EQ(statistics.failed_spills, 0);
  // Rows did go to disk and come back.
  EXPECT_GT(std::max(most_spilled, statistics.spilled_rows), 100);
  EXPECT_GT(reads + statistics.spill_reads, 50);
}

// Gradients are whole numbers and rows begin with 0, so that sums are exact in any order and concurrent
// updates have one result.
TEST_P(SpillModelTest, NoUpdateIsLostWhileRowsLeaveAndComeBackUnderManyThreads) {
  SpillCase c = std::get<0>(GetParam());
  v1::TableConfig config = c.Spilling();
  *config.mutable_initializer() = Zeros();
  *config.mutable_optimizer() = Sgd(1.0f);
  config.clear_admission();
  config.set_row_type(v1::TableConfig::F32);
  config.set_stochastic_rounding(false);
  const auto table = Make(config, c.num_buckets, NewTier());
  constexpr uint64_t kIds = 6000;
  constexpr int kThreads = 4;
  std::vector<std::vector<uint64_t>> pushed(kThreads, std::vector<uint64_t>(kIds));
  std::atomic<uint64_t> torn{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CounterRandom random(/*seed=*/5, t);
      for (int call = 0; call < 25; ++call) {
        std::vector<uint64_t> ids(300);
        for (uint64_t& id : ids) id = random.Below(2) == 0 ? random.Below(40) : random.Below(kIds);
        std::vector<float> rows(ids.size() * c.dim);
        TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/true, rows.data()));
        for (size_t i = 0; i < ids.size(); ++i) {
          for (size_t d = 1; d < c.dim; ++d) torn += rows[i * c.dim + d] != rows[i * c.dim];
        }
        std::fill(rows.begin(), rows.end(), -1.0f);
        const auto missing = table->Apply(ids, rows.data(), {});
        TANDEM_EXPECT_OK(missing);
        EXPECT_EQ(missing.value_or(0), 0);
        for (const uint64_t id : ids) ++pushed[t][id];
        if (call % 8 == 0) {
          TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/false, rows.data()));
          TANDEM_EXPECT_OK(table->VisitBucket(static_cast<uint32_t>(random.Below(c.num_buckets)),
                                              [](uint64_t, const float*, const RowHistory&) {}));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  const StoredRows rows = AllStoredRows(table.get(), c.num_buckets);
  uint64_t there = 0;
  for (uint64_t id = 0; id < kIds; ++id) {
    uint64_t want = 0;
    for (const auto& mine : pushed) want += mine[id];
    const auto row = rows.find(id);
    ASSERT_EQ(row != rows.end(), want > 0) << id;
    if (want == 0) continue;
    ++there;
    ASSERT_EQ(row->second.floats[0], static_cast<float>(want)) << id;
  }
  EXPECT_EQ(table->rows(), there);
  EXPECT_GT(table->Statistics().spill_reads, 100);
}

// One bucket of few rows, in which id 1 is cold and every other row is not.
class SpillTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kDim = 4;
  void SetUp() override {
    v1::TableConfig config = EmbeddingTable("t", kDim, Sgd(1.0f), Zeros());
    *config.mutable_eviction() = EvictLru();
    config.set_byte_budget(64 << 10);
    config.set_spill(true);
    auto tier = std::make_unique<MemoryTier>(&disk_);
    tier_ = tier.get();
    table_ = Make(config, 1, std::move(tier));
    quota_ = table_->Statistics().budget_rows;
  }
  // Pulls and pushes each id, whose row then is -1 - `before`.
  void Touch(std::vector<uint64_t> ids) {
    std::vector<float> rows(ids.size() * kDim);
    TANDEM_EXPECT_OK(table_->Gather(ids, /*create=*/true, rows.data()));
    std::fill(rows.begin(), rows.end(), 1.0f);
    TANDEM_EXPECT_OK(table_->Apply(ids, rows.data(), {}));
  }
  std::vector<uint64_t> Range(uint64_t first, uint64_t count) {
    std::vector<uint64_t> ids;
    for (uint64_t id = first; id < first + count; ++id) ids.push_back(id);
    return ids;
  }
  // Creates more rows than the bucket may hold; the oldest leave memory.
  void Fill() {
    Touch({1});
    // Advances past the updates during which recently arrived rows are spared.
    for (int update = 0; update < 100; ++update) Touch({2});
    Touch(Range(1000, quota_ + 1));
    EXPECT_GT(table_->Statistics().spilled_rows, 0);
  }
  float Read(uint64_t id) {
    float row[kDim];
    TANDEM_EXPECT_OK(table_->Gather({id}, /*create=*/false, row));
    return row[0];
  }
  void BeforePut(std::function<void()> run) {
    absl::MutexLock lock(&disk_.mutex);
    disk_.before_put = std::move(run);
  }
  void BeforeGet(std::function<void()> run) {
    absl::MutexLock lock(&disk_.mutex);
    disk_.before_get = std::move(run);
  }
  uint64_t Asked() {
    absl::MutexLock lock(&disk_.mutex);
    return disk_.asked;
  }

  MemoryDisk disk_;
  MemoryTier* tier_ = nullptr;
  std::unique_ptr<TableStorage> table_;
  uint64_t quota_ = 0;
};

TEST_F(SpillTest, RowsComeBackWhenTheyAreTouchedAndNotWhenTheyAreOnlyLookedAt) {
  Fill();
  const uint64_t spilled = table_->Statistics().spilled_rows;
  EXPECT_EQ(Read(1), -1);
  EXPECT_EQ(table_->Statistics().spill_reads, 0);
  EXPECT_EQ(table_->Statistics().spilled_rows, spilled);
  float row[kDim];
  TANDEM_ASSERT_OK(table_->Gather({1}, /*create=*/true, row));
  EXPECT_EQ(row[0], -1);
  EXPECT_EQ(table_->Statistics().spill_reads, 1);
  EXPECT_EQ(table_->Statistics().spilled_rows, spilled - 1);
  EXPECT_EQ(table_->rows(), quota_ + 3);
}

TEST_F(SpillTest, ReadingAWholeRowLeavesItColdAndWritingItBringsItBack) {
  Fill();
  const uint64_t spilled = table_->Statistics().spilled_rows;
  float row[kDim];
  uint8_t exists = 0;
  TANDEM_ASSERT_OK(table_->ReadRows({1}, row, &exists));
  EXPECT_EQ(exists, 1);
  EXPECT_EQ(row[0], -1);
  EXPECT_EQ(table_->Statistics().spilled_rows, spilled);
  std::fill_n(row, kDim, 7.0f);
  const uint64_t rows = table_->rows();
  TANDEM_ASSERT_OK(table_->WriteRows({1}, row));
  EXPECT_EQ(Read(1), 7);
  EXPECT_EQ(table_->rows(), rows);
}

TEST_F(SpillTest, ABatchIsAskedForInOneCallAndOnlyWhatIsNotInMemory) {
  Touch(Range(1, 100));
  EXPECT_EQ(Asked(), 0);  // nothing has left yet: ids never seen cost nothing
  Fill();
  const uint64_t asked = Asked();
  uint64_t gets;
  {
    absl::MutexLock lock(&disk_.mutex);
    gets = disk_.gets;
  }
  std::vector<uint64_t> ids = Range(1, 100);
  const std::vector<uint64_t> last = Range(1000 + quota_ - 100, 100);
  ids.insert(ids.end(), last.begin(), last.end());
  std::vector<float> rows(ids.size() * kDim);
  TANDEM_ASSERT_OK(table_->Gather(ids, /*create=*/false, rows.data()));
  EXPECT_EQ(Asked() - asked, 100);
  absl::MutexLock lock(&disk_.mutex);
  EXPECT_EQ(disk_.gets, gets + 1);
}

TEST_F(SpillTest, ARowThatIsUpdatedWhileItIsPutStaysInMemory) {
  std::thread updater;
  bool hooked = false;
  Touch({1});
  for (int update = 0; update < 100; ++update) Touch({2});
  BeforePut([&] {
    if (std::exchange(hooked, true)) return;
    // The copy of row 1 is made, and the put under way; this update waits for no disk.
    updater = std::thread([&] {
      const std::vector<float> gradient(kDim, 1.0f);
      TANDEM_EXPECT_OK(table_->Apply({1}, gradient.data(), {}));
    });
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (Read(1) != -2 && absl::Now() < deadline) std::this_thread::yield();
  });
  Touch(Range(1000, quota_ + 1));
  updater.join();
  ASSERT_TRUE(hooked);
  EXPECT_EQ(Read(1), -2);
  StoredRows rows = AllStoredRows(table_.get(), 1);
  EXPECT_EQ(rows[1].floats[0], -2);
  EXPECT_EQ(rows.size(), quota_ + 3);
  EXPECT_EQ(table_->rows(), quota_ + 3);
}

TEST_F(SpillTest, TwoCallsThatBringARowBackAndAnUpdateBetweenMakeOneRow) {
  Fill();
  bool hooked = false;
  BeforeGet([&] {
    if (std::exchange(hooked, true)) return;
    // This runs between the pull's lookup in memory and its lookup on disk.
    std::thread([&] {
      const std::vector<float> gradient(kDim, 1.0f);
      TANDEM_EXPECT_OK(table_->Apply({1}, gradient.data(), {}));
    }).join();
  });
  float row[kDim];
  TANDEM_ASSERT_OK(table_->Gather({1}, /*create=*/true, row));
  ASSERT_TRUE(hooked);
  EXPECT_EQ(row[0], -2);
  EXPECT_EQ(Read(1), -2);
  EXPECT_EQ(table_->Statistics().spill_reads, 1);
  EXPECT_EQ(AllStoredRows(table_.get(), 1)[1].floats[0], -2);
}

TEST_F(SpillTest, WhatCannotBeWrittenStaysInMemoryAndGoesLater) {
  disk_.FailPuts(absl::ResourceExhaustedError("table 't': the disk is full"));
  Touch({1});
  for (int update = 0; update < 100; ++update) Touch({2});
  Touch(Range(1000, 3 * quota_));
  StorageStatistics statistics = table_->Statistics();
  EXPECT_EQ(statistics.spilled_rows, 0);
  EXPECT_GT(statistics.failed_spills, 0);
  EXPECT_EQ(statistics.rows, 3 * quota_ + 2);
  EXPECT_EQ(AllStoredRows(table_.get(), 1).size(), 3 * quota_ + 2);  // and none of them twice
  disk_.FailPuts(absl::OkStatus());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (table_->Statistics().spilled_rows == 0 && absl::Now() < deadline) Touch({2});
  statistics = table_->Statistics();
  EXPECT_LE(statistics.rows, quota_);
  EXPECT_EQ(statistics.rows + statistics.spilled_rows, 3 * quota_ + 2);
  EXPECT_EQ(Read(1), -1);
  EXPECT_EQ(AllStoredRows(table_.get(), 1).size(), 3 * quota_ + 2);
}

TEST_F(SpillTest, APullThatCannotReadFailsAndChangesNothing) {
  Fill();
  const StoredRows before = AllStoredRows(table_.get(), 1);
  disk_.FailGets(absl::UnavailableError("table 't': rows on disk in /d: reading: input/output error"));
  float rows[2 * kDim];
  EXPECT_THAT(table_->Gather({1, 2}, /*create=*/true, rows),
              StatusIs(absl::StatusCode::kUnavailable, AllOf(HasSubstr("'t'"), HasSubstr("/d"))));
  EXPECT_THAT(table_->Gather({1000 + quota_}, /*create=*/true, rows), IsOk());  // is in memory
  EXPECT_THAT(table_->VisitBucket(0, [](uint64_t, const float*, const RowHistory&) {}),
              StatusIs(absl::StatusCode::kUnavailable));
  disk_.FailGets(absl::OkStatus());
  EXPECT_EQ(AllStoredRows(table_.get(), 1), before);
}

TEST_F(SpillTest, ATableThatLostAnUpdateServesNoMoreUntilItIsLoaded) {
  Fill();
  disk_.FailGets(absl::UnavailableError("reading: input/output error"));
  const std::vector<float> gradients(2 * kDim, 1.0f);
  EXPECT_THAT(
      table_->Apply({1, 2}, gradients.data(), {}),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("input/output"), HasSubstr("checkpoint"))));
  disk_.FailGets(absl::OkStatus());
  float row[kDim];
  EXPECT_THAT(table_->Gather({2}, /*create=*/true, row), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(table_->Apply({2}, gradients.data(), {}), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(table_->VisitBucket(0, [](uint64_t, const float*, const RowHistory&) {}),
              StatusIs(absl::StatusCode::kDataLoss));
  table_->Clear();
  EXPECT_EQ(table_->rows(), 0);
  Touch({2});
  EXPECT_EQ(Read(2), -1);
}

TEST_F(SpillTest, ADiskThatForgetsARowIsNoticedByTheNextCheckpoint) {
  Fill();
  tier_->Lose(0, 1);
  EXPECT_THAT(table_->VisitBucket(0, [](uint64_t, const float*, const RowHistory&) {}),
              StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("'t'"), HasSubstr("bucket 0"))));
}

}  // namespace
}  // namespace tandem::ps
