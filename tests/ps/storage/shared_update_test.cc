// SPDX-License-Identifier: Apache-2.0
// Tests updates that several threads share, and reads of rows in their stored format.

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/storage/row_codec.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

constexpr uint32_t kSharedDim = 20;
constexpr uint32_t kSharedBuckets = 64;

class TwoThreads : public Helpers {
 public:
  void Share(absl::FunctionRef<void()> work) override {
    ++calls_;
    std::thread other([work] { work(); });
    work();
    other.join();
  }
  int calls() const { return calls_; }

 private:
  std::atomic<int> calls_{0};
};

std::unique_ptr<TableStorage> NewTable(const v1::TableConfig& config) {
  return TableStorage::Create(config, kSharedBuckets, [](uint32_t) { return true; });
}

v1::TableConfig Config(v1::TableConfig::RowType type) {
  v1::TableConfig config = EmbeddingTable("t", kSharedDim, Adam(0.1f), Uniform(-1, 1));
  config.set_row_type(type);
  return config;
}

struct Row {
  uint64_t id;
  std::vector<float> floats;
  uint32_t version, count;
  bool operator==(const Row& other) const {
    return id == other.id && version == other.version && count == other.count &&
           std::memcmp(floats.data(), other.floats.data(), floats.size() * sizeof(float)) == 0;
  }
};

std::vector<Row> AllRows(TableStorage& table) {
  std::vector<Row> rows;
  for (uint32_t bucket = 0; bucket < kSharedBuckets; ++bucket) {
    TANDEM_EXPECT_OK(table.VisitBucket(bucket, [&](uint64_t id, const float* row, const RowHistory& history) {
      rows.push_back({id, {row, row + table.row_floats()}, history.version, history.count});
    }));
  }
  return rows;
}

// Runs the same updates alone and shared: small and large, with and without repetitions.
void ExpectSameBits(const v1::TableConfig& config) {
  const auto alone = NewTable(config), shared = NewTable(config);
  TwoThreads helpers;
  CounterRandom random(/*seed=*/3, 0);
  for (int update = 0; update < 12; ++update) {
    const size_t count = update % 3 == 0 ? 100 : 5000;
    const uint64_t range = update % 2 == 0 ? 3000 : 100000;
    std::vector<uint64_t> ids(count);
    for (uint64_t& id : ids) id = random.Below(range);
    std::vector<float> gradients(count * kSharedDim);
    for (float& g : gradients) g = static_cast<float>(random.Below(2000)) * 0.001f - 1.0f;
    std::vector<float> rows(count * kSharedDim);
    TANDEM_ASSERT_OK(alone->Gather(ids, /*create=*/true, rows.data()));
    TANDEM_ASSERT_OK(shared->Gather(ids, /*create=*/true, rows.data()));
    ASSERT_EQ(*alone->Apply(ids, gradients.data(), {}),
              *shared->Apply(ids, gradients.data(), {.helpers = &helpers}));
    ASSERT_EQ(alone->rows(), shared->rows());
    ASSERT_EQ(alone->Statistics().evicted_rows, shared->Statistics().evicted_rows);
  }
  EXPECT_EQ(helpers.calls(), 8);
  EXPECT_TRUE(AllRows(*alone) == AllRows(*shared));
}

TEST(SharedUpdateTest, ManyThreadsMakeTheRowsThatOneMakes) { ExpectSameBits(Config(v1::TableConfig::F32)); }

TEST(SharedUpdateTest, SoTheyDoWithStochasticRounding) {
  v1::TableConfig config = Config(v1::TableConfig::F16);
  config.set_stochastic_rounding(true);
  ExpectSameBits(config);
}

TEST(SharedUpdateTest, SoTheyDoWhereRowsAreCountedInAndEvicted) {
  v1::TableConfig config = Config(v1::TableConfig::BF16);
  config.mutable_admission()->set_kind("count");
  config.mutable_admission()->set_threshold(2);
  config.mutable_admission()->set_counters(1 << 16);
  *config.mutable_eviction() = EvictLfu();
  config.set_byte_budget(uint64_t{1} << 20);
  TANDEM_ASSERT_OK(ValidateTableConfig(config));
  ExpectSameBits(config);
}

TEST(SharedUpdateTest, UpdatesOfSeveralCallsMayShareAtTheSameTime) {
  v1::TableConfig config = EmbeddingTable("t", kSharedDim, Sgd(1.0f), Zeros());
  const auto table = NewTable(config);
  std::vector<uint64_t> ids(4000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::vector<float> rows(ids.size() * kSharedDim);
  TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/true, rows.data()));
  std::atomic<uint64_t> torn{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      TwoThreads helpers;
      const std::vector<float> gradients(ids.size() * kSharedDim, -1.0f);
      std::vector<float> seen(ids.size() * kSharedDim);
      for (int update = 0; update < 20; ++update) {
        TANDEM_EXPECT_OK(table->Apply(ids, gradients.data(), {.helpers = &helpers}));
        TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/false, seen.data()));
        for (size_t i = 0; i < seen.size(); ++i) torn += seen[i] != seen[i / kSharedDim * kSharedDim];
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(torn, 0);
  TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/false, rows.data()));
  EXPECT_THAT(rows, ::testing::Each(60.0f));
}

TEST(GatherStoredTest, RowsReadAsTheyAreStored) {
  for (const auto type : {v1::TableConfig::F32, v1::TableConfig::F16, v1::TableConfig::BF16}) {
    const auto table = NewTable(Config(type));
    const size_t bytes = kSharedDim * SizeOf(table->row_type());
    CounterRandom random(/*seed=*/4, 0);
    std::vector<uint64_t> ids(3000);
    for (int round = 0; round < 3; ++round) {
      for (uint64_t& id : ids) id = random.Below(5000);
      // Some of these rows are absent: they are created now, or only read.
      std::vector<char> stored(ids.size() * bytes);
      TANDEM_ASSERT_OK(table->GatherStored(ids, /*create=*/round == 1, stored.data()));
      std::vector<float> floats(ids.size() * kSharedDim), values(kSharedDim);
      TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/false, floats.data()));
      for (size_t i = 0; i < ids.size(); ++i) {
        const char* const row = stored.data() + i * bytes;
        LoadRows(table->row_type(), absl::MakeConstSpan(&row, 1), kSharedDim, values.data());
        ASSERT_EQ(std::memcmp(values.data(), floats.data() + i * kSharedDim, kSharedDim * sizeof(float)), 0)
            << ids[i];
      }
      EXPECT_EQ(table->rows() > 0, round >= 1);
      TANDEM_ASSERT_OK(table->Apply(ids, floats.data(), {}));
    }
  }
}

TEST(GatherAroundTest, RowsReadTheSameAroundTheCaches) {
  constexpr uint32_t kDim = 32;  // a row is two lines
  for (const auto type : {v1::TableConfig::F32, v1::TableConfig::BF16}) {
    v1::TableConfig config = EmbeddingTable("t", kDim, Adam(0.1f), Uniform(-1, 1));
    config.set_row_type(type);
    const auto table = NewTable(config);
    CounterRandom random(/*seed=*/5, 0);
    std::vector<uint64_t> ids(3000);
    // The output begins inside a cache line, and at the start of one.
    std::vector<float> around(ids.size() * kDim + 16), rows(ids.size() * kDim);
    for (int round = 0; round < 20; ++round) {
      for (uint64_t& id : ids) id = random.Below(5000);
      // Some of these rows are absent: they are created now, or only read.
      float* const out = around.data() + round % 16;
      TANDEM_ASSERT_OK(table->GatherAround(ids, /*create=*/round > 0, out));
      TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/false, rows.data()));
      EXPECT_EQ(std::memcmp(out, rows.data(), rows.size() * sizeof(float)), 0) << round;
      EXPECT_EQ(table->rows() > 0, round > 0);
      TANDEM_ASSERT_OK(table->Apply(ids, rows.data(), {}));
    }
  }
}

}  // namespace
}  // namespace tandem::ps
