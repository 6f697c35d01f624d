// SPDX-License-Identifier: Apache-2.0
// A cut shows the rows of one moment, whatever happens to the table while it is visited.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/shard_map.h"
#include "ps/storage/admission_filter.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/ps/storage/spill/memory_tier.h"
#include "tests/ps/storage/stored_rows.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using testing::AllStoredRows;
using testing::MemoryDisk;
using testing::MemoryTier;
using testing::StoredRow;
using testing::StoredRows;

constexpr uint32_t kBuckets = 16;
constexpr uint32_t kDim = 3;

std::unique_ptr<TableStorage> Make(const v1::TableConfig& config, std::unique_ptr<ColdTier> tier = nullptr) {
  TANDEM_EXPECT_OK(ValidateTableConfig(config));
  return TableStorage::Create(
      config, kBuckets, [](uint32_t) { return true; }, std::move(tier));
}

v1::TableConfig Config() {
  v1::TableConfig config = EmbeddingTable("t", kDim, Adagrad(0.1f, 0.1f), Uniform(-1, 1));
  config.set_seed(3);
  return config;
}

// Changes some rows with ids below `most` in every way there is.
void Change(TableStorage* table, uint64_t most, CounterRandom* random) {
  std::vector<uint64_t> ids(1 + random->Below(most / 15));
  for (uint64_t& id : ids) id = random->Below(most);
  const uint64_t kind = random->Below(8);
  if (kind == 0) {
    std::vector<float> rows(ids.size() * kDim);
    TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/true, rows.data()));
  } else if (kind == 1) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    TANDEM_EXPECT_OK(
        table->WriteRows(ids, std::vector<float>(ids.size() * table->row_floats(), 0.5f).data()));
  } else {
    std::vector<float> gradients(ids.size() * kDim);
    for (float& gradient : gradients) gradient = static_cast<float>(random->Below(100)) * 0.01f;
    TANDEM_EXPECT_OK(table->Apply(ids, gradients.data(), {}));
  }
}

using Filters = std::vector<std::string>;
Filters FiltersOf(const TableStorage& table) {
  Filters filters;
  for (uint32_t b = 0; b < kBuckets; ++b) filters.push_back(table.SaveFilter(b));
  return filters;
}

// The content of a chain of checkpoints.
struct Image {
  StoredRows rows;
  Filters filters = Filters(kBuckets);

  // Visits a bucket of the cut and takes over what has changed.
  void Take(TableStorage* table, uint32_t bucket, bool whole, uint32_t (*bucket_of)(uint64_t id)) {
    std::map<uint64_t, StoredRow> visited;
    uint64_t previous = 0;
    absl::StatusOr<BucketChanges> changes =
        table->VisitCut(bucket, whole, [&](uint64_t id, const float* row, const RowHistory& history) {
          EXPECT_TRUE(visited.empty() || id > previous);
          previous = id;
          visited[id] = {{row, row + table->row_floats()}, history.version, history.count};
        });
    ASSERT_TRUE(changes.ok()) << changes.status();
    EXPECT_TRUE(changes->whole || !whole);
    if (changes->whole) {
      std::erase_if(rows, [&](const auto& row) { return bucket_of(row.first) == bucket; });
      filters[bucket] = changes->filter;
    } else {
      for (const uint64_t id : changes->removed) rows.erase(id);
      EXPECT_TRUE(PatchFilter(changes->filter, changes->filter_bytes, &filters[bucket]));
    }
    for (auto& [id, row] : visited) rows[id] = std::move(row);
  }
};

uint32_t BucketOfId(uint64_t id) { return BucketOf(id, kBuckets); }

// Takes cuts while the table changes, complete ones and differences, and compares each with the table as it
// was at that moment.
void ExpectCutsOfOneMoment(TableStorage* table, uint64_t seed, uint64_t ids = 600) {
  CounterRandom random(seed, 9);
  Image image;
  bool has_base = false;
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 30; ++i) Change(table, ids, &random);
    const StoredRows expected = AllStoredRows(table, kBuckets);
    const Filters filters = FiltersOf(*table);
    table->BeginCut();
    const bool whole = !has_base || random.Below(3) == 0;
    Image next = image;
    // One in four is given up, as by a full disk.
    const bool kept = random.Below(4) != 0;
    const uint32_t end = kept ? kBuckets : static_cast<uint32_t>(random.Below(kBuckets));
    for (uint32_t b = 0; b < end; ++b) {
      for (uint64_t i = random.Below(4); i > 0; --i) Change(table, ids, &random);
      next.Take(table, b, whole, BucketOfId);
    }
    for (int i = 0; i < 3; ++i) Change(table, ids, &random);
    table->EndCut(kept);
    EXPECT_EQ(table->cut_bytes(), 0u);
    if (!kept) continue;
    image = std::move(next);
    has_base = true;
    ASSERT_EQ(image.rows, expected) << "round " << round;
    ASSERT_EQ(image.filters, filters) << "round " << round;
  }
}

TEST(RowCut, ShowsTheRowsOfOneMomentWhileAllRowsChange) { ExpectCutsOfOneMoment(Make(Config()).get(), 1); }

TEST(RowCut, ShowsTheRowsOfOneMomentInEveryKindOfTable) {
  v1::TableConfig half = Config();
  half.set_row_type(v1::TableConfig::BF16);
  half.set_stochastic_rounding(true);
  ExpectCutsOfOneMoment(Make(half).get(), 2);
  v1::TableConfig expiring = Config();
  *expiring.mutable_eviction() = EvictAfter(20);
  *expiring.mutable_admission() = AdmitAfter(2, 4000);
  ExpectCutsOfOneMoment(Make(expiring).get(), 3);
  v1::TableConfig bounded = Config();
  *bounded.mutable_eviction() = EvictLru();
  bounded.set_byte_budget(65536);
  const std::unique_ptr<TableStorage> evicting = Make(bounded);
  ExpectCutsOfOneMoment(evicting.get(), 4, 4000);
  EXPECT_GT(evicting->Statistics().evicted_rows, 0u);
  MemoryDisk disk;
  bounded.set_spill(true);
  const std::unique_ptr<TableStorage> spilling = Make(bounded, std::make_unique<MemoryTier>(&disk));
  ExpectCutsOfOneMoment(spilling.get(), 5, 4000);
  EXPECT_GT(spilling->Statistics().spill_reads, 0u);
}

TEST(RowCut, ABucketIsVisitedOnceAndOnlyWithACut) {
  const std::unique_ptr<TableStorage> table = Make(Config());
  const auto visit = [](uint64_t, const float*, const RowHistory&) {};
  constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(table->VisitCut(0, true, visit), StatusIs(kRefused));
  table->BeginCut();
  TANDEM_EXPECT_OK(table->VisitCut(0, true, visit));
  EXPECT_THAT(table->VisitCut(0, true, visit), StatusIs(kRefused));
  table->Clear();
  EXPECT_THAT(table->VisitCut(1, true, visit), StatusIs(kRefused));
}

// Each update changes all rows at once, by 1: rows of one moment are all equal.
TEST(RowCut, ShowsOneMomentToAThreadBesideOthersThatUpdate) {
  v1::TableConfig config = EmbeddingTable("t", kDim, Sgd(1.0f), Zeros());
  const std::unique_ptr<TableStorage> table = Make(config);
  std::vector<uint64_t> ids(5000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::vector<float> gradients(ids.size() * kDim);
  TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/true, gradients.data()));
  std::fill(gradients.begin(), gradients.end(), -1.0f);
  std::atomic<bool> stop{false};
  absl::Mutex between;  // held by an update, and to begin a cut
  int updates = 0;      // guarded by `between`
  const auto await_update = [&] {
    const absl::MutexLock lock(&between);
    const int before = updates;
    const auto done = [&] { return updates > before; };
    EXPECT_TRUE(between.AwaitWithTimeout(absl::Condition(&done), absl::Seconds(60)));
  };
  std::thread trainer([&] {
    while (!stop) {
      absl::MutexLock lock(&between);
      TANDEM_EXPECT_OK(table->Apply(ids, gradients.data(), {}));
      ++updates;
    }
  });
  for (int round = 0; round < 10; ++round) {
    await_update();
    float expected;
    {
      absl::MutexLock lock(&between);
      expected = static_cast<float>(updates);
      table->BeginCut();
    }
    uint64_t rows = 0, wrong = 0;
    for (uint32_t b = 0; b < kBuckets; ++b) {
      if (b % 4 == 1) await_update();
      TANDEM_EXPECT_OK(table->VisitCut(b, true, [&](uint64_t, const float* row, const RowHistory&) {
        ++rows;
        for (uint32_t d = 0; d < kDim; ++d) wrong += row[d] != expected ? 1 : 0;
      }));
    }
    table->EndCut(true);
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(rows, ids.size());
  }
  stop = true;
  trainer.join();
}

}  // namespace
}  // namespace tandem::ps
