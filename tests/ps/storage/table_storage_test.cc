// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/table_storage.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/initializer.h"
#include "ps/shard_map.h"
#include "ps/table.h"
#include "tests/ps/storage/stored_rows.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

bool AllBuckets(uint32_t bucket) { return true; }

std::unique_ptr<TableStorage> Make(const v1::TableConfig& config, uint32_t num_buckets = 256) {
  return TableStorage::Create(config, num_buckets, AllBuckets);
}

v1::TableConfig WithSeed(v1::TableConfig config, uint64_t seed) {
  config.set_seed(seed);
  return config;
}

// The model: a simple table.
class Model {
 public:
  explicit Model(const v1::TableConfig& config)
      : config_(config),
        dim_(config.dim()),
        optimizer_(*MakeOptimizer(config.optimizer())),
        initializer_(*MakeInitializer(config.initializer())) {}

  std::vector<float> NewRow(uint64_t id) const {
    std::vector<float> row(dim_ + optimizer_->state_floats(dim_));
    initializer_->Fill(config_.seed(), id, row.data(), dim_);
    optimizer_->InitState(row.data(), row.data() + dim_, dim_);
    return row;
  }
  void Gather(const std::vector<uint64_t>& ids, bool create, std::vector<float>* out) {
    out->clear();
    for (const uint64_t id : ids) {
      const auto it = rows_.find(id);
      const std::vector<float> row = it == rows_.end() ? NewRow(id) : it->second;
      if (create) rows_.emplace(id, row);
      out->insert(out->end(), row.begin(), row.begin() + dim_);
    }
  }
  uint64_t Apply(const std::vector<uint64_t>& ids, const std::vector<float>& gradients, float scale) {
    uint64_t missing = 0;
    std::map<uint64_t, std::vector<float>> sums;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (rows_.count(ids[i]) == 0) {
        ++missing;
        continue;
      }
      const float* gradient = gradients.data() + i * dim_;
      const auto [it, is_new] = sums.emplace(ids[i], std::vector<float>(gradient, gradient + dim_));
      for (size_t d = 0; d < dim_ && !is_new; ++d) it->second[d] += gradient[d];
    }
    for (const auto& [id, sum] : sums) {
      std::vector<float>& row = rows_[id];
      const RowUpdate update = {row.data(), row.data() + dim_, sum.data()};
      optimizer_->Update({&update, 1}, dim_, scale);
    }
    return missing;
  }
  std::map<uint64_t, std::vector<float>>& rows() { return rows_; }

 private:
  const v1::TableConfig config_;
  const size_t dim_;
  const std::unique_ptr<Optimizer> optimizer_;
  const std::unique_ptr<Initializer> initializer_;
  std::map<uint64_t, std::vector<float>> rows_;
};

// Reads all rows with VisitBucket, which must be in ascending order of id within each bucket.
std::map<uint64_t, std::vector<float>> AllRows(TableStorage* table, uint32_t num_buckets) {
  std::map<uint64_t, std::vector<float>> rows;
  for (uint32_t b = 0; b < num_buckets; ++b) {
    bool first = true;
    uint64_t last = 0;
    TANDEM_EXPECT_OK(table->VisitBucket(b, [&](uint64_t id, const float* row, const RowHistory&) {
      EXPECT_TRUE(first || id > last);
      EXPECT_EQ(BucketOf(id, num_buckets), b);
      EXPECT_TRUE(rows.emplace(id, std::vector<float>(row, row + table->row_floats())).second);
      first = false;
      last = id;
    }));
  }
  return rows;
}

std::vector<float> RandomFloats(CounterRandom* random, size_t n) {
  std::vector<float> values(n);
  for (float& v : values) v = random->Uniform() - 0.5f;
  return values;
}

struct ModelCase {
  std::string name;
  uint32_t dim;
  v1::OptimizerConfig optimizer;
  uint32_t num_buckets;
};

class TableStorageModelTest : public ::testing::TestWithParam<ModelCase> {};
INSTANTIATE_TEST_SUITE_P(Shapes, TableStorageModelTest,
                         ::testing::Values(ModelCase{"Dim1Sgd", 1, Sgd(0.1f), 256},
                                           ModelCase{"Dim3AdagradOneBucket", 3, Adagrad(0.1f), 1},
                                           ModelCase{"Dim16Adagrad", 16, Adagrad(0.1f), 256},
                                           ModelCase{"Dim17Adam", 17, Adam(0.1f), 4},
                                           ModelCase{"Dim64Rowwise", 64, RowwiseAdagrad(0.1f), 16},
                                           ModelCase{"Dim5FtrlManyBuckets", 5, Ftrl(0.1f, 0.01f), 65536},
                                           ModelCase{"Dim2000Momentum", 2000, Momentum(0.1f), 8}),
                         [](const auto& info) { return info.param.name; });

TEST_P(TableStorageModelTest, BehavesLikeAMapOverALongRandomSequenceOfOperations) {
  const ModelCase& param = GetParam();
  const v1::TableConfig config =
      WithSeed(EmbeddingTable("t", param.dim, param.optimizer, Uniform(-1, 1)), 11);
  const std::unique_ptr<TableStorage> table = Make(config, param.num_buckets);
  Model model(config);
  CounterRandom random(/*seed=*/2, param.dim);
  const size_t max_ids = param.dim > 100 ? 40 : 3000;
  const int operations = param.dim > 100 ? 150 : 300;
  for (int operation = 0; operation < operations; ++operation) {
    std::vector<uint64_t> ids(random.Below(2) == 0 ? random.Below(20) : random.Below(max_ids));
    // A few hot ids make many duplicates, and a growing range brings new ids.
    const uint64_t range = 1 + random.Below(20 * (operation + 1));
    for (uint64_t& id : ids)
      id = random.Below(3) == 0 ? random.Below(8) : random.Below(range) * 0x100000001ull;
    const uint64_t choice = random.Below(20);
    if (choice < 10) {
      const bool create = choice < 7;
      std::vector<float> got(ids.size() * param.dim), want;
      TANDEM_EXPECT_OK(table->Gather(ids, create, got.data()));
      model.Gather(ids, create, &want);
      ASSERT_EQ(got, want) << "operation " << operation;
    } else if (choice < 18) {
      const std::vector<float> gradients = RandomFloats(&random, ids.size() * param.dim);
      const float scale = choice == 17 ? 0.5f : 1.0f;
      ASSERT_EQ(*table->Apply(ids, gradients.data(), {.learning_rate_factor = scale}),
                model.Apply(ids, gradients, scale));
    } else if (choice == 18) {
      for (size_t i = 0; i < ids.size() && i < 10; ++i) {
        std::vector<float> row = RandomFloats(&random, table->row_floats());
        for (float& v : row) v = std::abs(v);  // accumulators are never negative
        TANDEM_EXPECT_OK(table->Restore(ids[i], row.data(), {}));
        model.rows()[ids[i]] = row;
      }
    } else if (operation % 4 == 0) {
      table->Clear();
      model.rows().clear();
    }
    ASSERT_EQ(table->rows(), model.rows().size());
    if (operation % 30 == 29 && param.num_buckets <= 256) {
      ASSERT_EQ(AllRows(table.get(), param.num_buckets), model.rows());
    }
  }
  EXPECT_EQ(AllRows(table.get(), param.num_buckets), model.rows());
  for (const size_t page : {1, 7, 100000}) {
    EXPECT_EQ(testing::StoredRowsByPages(table.get(), param.num_buckets, page),
              testing::AllStoredRows(table.get(), param.num_buckets));
  }
}

TEST(TableStorageTest, ValuesDependNeitherOnOrderOfArrivalNorOnHowBucketsAreSplit) {
  const v1::TableConfig config = WithSeed(EmbeddingTable("t", 8, Adagrad(0.1f), Normal(0, 1)), 3);
  CounterRandom random(/*seed=*/4, 0);
  std::vector<std::vector<uint64_t>> batches(20);
  for (auto& batch : batches) {
    batch.resize(500);
    for (uint64_t& id : batch) id = random.Below(4000);
  }
  std::map<uint64_t, std::vector<float>> first;
  for (const uint32_t servers : {1, 2, 4}) {
    const ShardMap map = ShardMap::Even(servers);
    std::vector<std::unique_ptr<TableStorage>> tables;
    for (uint32_t s = 0; s < servers; ++s) {
      tables.push_back(
          TableStorage::Create(config, 256, [&](uint32_t b) { return map.OwnerOfBucket(b) == s; }));
    }
    for (const auto& batch : batches) {
      std::vector<std::vector<uint64_t>> split(servers);
      for (const uint64_t id : batch) split[map.OwnerOf(id)].push_back(id);
      for (uint32_t s = 0; s < servers; ++s) {
        // Two servers see the ids in reverse when rows are created; gradients come in the same order for all.
        std::vector<uint64_t> making = split[s];
        if (servers == 2) std::reverse(making.begin(), making.end());
        std::vector<float> rows(split[s].size() * 8), gradients;
        TANDEM_EXPECT_OK(tables[s]->Gather(making, /*create=*/true, rows.data()));
        TANDEM_EXPECT_OK(tables[s]->Gather(split[s], /*create=*/false, rows.data()));
        for (const float v : rows) gradients.push_back(v * 0.3f + 0.1f);
        EXPECT_EQ(*tables[s]->Apply(split[s], gradients.data(), {}), 0);
      }
    }
    std::map<uint64_t, std::vector<float>> all;
    for (const auto& table : tables) all.merge(AllRows(table.get(), 256));
    if (servers == 1) first = all;
    EXPECT_EQ(all, first) << servers << " servers";
  }
}

TEST(TableStorageTest, AMissingRowShiftsNoOtherRowsGradient) {
  const std::unique_ptr<TableStorage> table = Make(EmbeddingTable("t", 2, Sgd(1.0f), Zeros()));
  float out[6];
  TANDEM_EXPECT_OK(table->Gather({1, 3}, /*create=*/true, out));
  const float gradients[] = {1, 2, 10, 20, 3, 4};
  EXPECT_EQ(*table->Apply({1, 2, 3}, gradients, {}), 1);
  TANDEM_EXPECT_OK(table->Gather({1, 2, 3}, /*create=*/false, out));
  EXPECT_THAT(out, ElementsAre(-1, -2, 0, 0, -3, -4));
  EXPECT_EQ(table->rows(), 2);
}

TEST(TableStorageTest, ReadingWithoutCreateLeavesNoTrace) {
  const std::unique_ptr<TableStorage> table = Make(EmbeddingTable("t", 4, Sgd(1.0f), Constant(2)));
  std::vector<float> out(40);
  const uint64_t bytes = table->Statistics().bytes;
  TANDEM_EXPECT_OK(table->Gather({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, /*create=*/false, out.data()));
  EXPECT_THAT(out, Each(2.0f));
  EXPECT_EQ(table->rows(), 0);
  EXPECT_LT(table->Statistics().bytes, bytes + 4096);  // working memory of the call itself
}

TEST(TableStorageTest, TwoRepetitionsAreOneUpdateWithTheirSum) {
  // Adagrad tells one update by 3 from updates by 1 and 2: its first step is always the learning rate.
  const std::unique_ptr<TableStorage> table = Make(EmbeddingTable("t", 1, Adagrad(0.5f), Zeros()));
  float out[1];
  TANDEM_EXPECT_OK(table->Gather({7}, /*create=*/true, out));
  const float gradients[] = {1, 2};
  EXPECT_EQ(*table->Apply({7, 7}, gradients, {}), 0);
  TANDEM_EXPECT_OK(table->VisitBucket(BucketOf(7, 256), [](uint64_t id, const float* row, const RowHistory&) {
    EXPECT_EQ(id, 7);
    EXPECT_FLOAT_EQ(row[0], -0.5f);
    EXPECT_FLOAT_EQ(row[1], 9.0f);
  }));
}

TEST(TableStorageTest, ADenseTableHasItsRowsFromTheStart) {
  const v1::TableConfig config =
      DenseTable("d", 2500, Adagrad(0.1f), Uniform(-1, 1));  // rows of 1024: 3 of them
  const std::unique_ptr<TableStorage> table = Make(config);
  EXPECT_EQ(table->rows(), 3);
  Model model(config);
  std::vector<float> got(4 * 1024), want;
  TANDEM_EXPECT_OK(table->Gather({2, 0, 1, 3}, /*create=*/true, got.data()));
  model.Gather({2, 0, 1}, /*create=*/true, &want);
  want.resize(4 * 1024, 0.0f);  // id 3 is out of range: zeros
  EXPECT_EQ(got, want);
  EXPECT_EQ(table->rows(), 3);
  EXPECT_EQ(*table->Apply({0, 3, uint64_t{1} << 63}, got.data(), {}), 2);
  TANDEM_EXPECT_OK(table->Restore(3, got.data(), {}));
  EXPECT_EQ(table->rows(), 3);
}

TEST(TableStorageTest, ADenseTableHoldsOnlyRowsOfOwnedBuckets) {
  const v1::TableConfig config = DenseTable("d", 100 * 1024, Sgd(0.1f), Zeros());
  const ShardMap map = ShardMap::Even(2);
  uint64_t rows = 0;
  for (uint32_t s = 0; s < 2; ++s) {
    const auto table =
        TableStorage::Create(config, 256, [&](uint32_t b) { return map.OwnerOfBucket(b) == s; });
    for (const auto& [id, row] : AllRows(table.get(), 256)) EXPECT_EQ(map.OwnerOf(id), s);
    EXPECT_GT(table->rows(), 20);
    rows += table->rows();
  }
  EXPECT_EQ(rows, 100);
}

TEST(TableStorageTest, ClearForgetsADenseTableToo) {
  const std::unique_ptr<TableStorage> table = Make(DenseTable("d", 1024, Sgd(1.0f), Constant(3)));
  std::vector<float> row(1024, 1.0f);
  EXPECT_EQ(*table->Apply({0}, row.data(), {}), 0);
  table->Clear();
  EXPECT_EQ(table->rows(), 0);
  TANDEM_EXPECT_OK(table->Gather({0}, /*create=*/true, row.data()));
  EXPECT_THAT(row, Each(3.0f));
  EXPECT_EQ(table->rows(), 0);
  row.assign(1024, 7.0f);
  TANDEM_EXPECT_OK(table->Restore(0, row.data(), {}));
  TANDEM_EXPECT_OK(table->Gather({0}, /*create=*/false, row.data()));
  EXPECT_THAT(row, Each(7.0f));
}

TEST(TableStorageTest, BytesCoverTheRowsAndSmallTablesStaySmall) {
  const std::unique_ptr<TableStorage> table = Make(EmbeddingTable("t", 16, Adagrad(0.1f), Zeros()));
  EXPECT_LT(table->Statistics().bytes, 128 << 10);
  const auto grow_to = [&](uint64_t rows) {
    std::vector<uint64_t> ids;
    for (uint64_t id = table->rows(); id < rows; ++id) ids.push_back(id);
    std::vector<float> out(ids.size() * 16);
    for (size_t i = 0; i < ids.size(); i += 1000) {
      const size_t n = std::min<size_t>(1000, ids.size() - i);
      TANDEM_EXPECT_OK(table->Gather(absl::MakeConstSpan(ids).subspan(i, n), /*create=*/true, out.data()));
    }
  };
  const double payload = 2 * 16 * 4;
  grow_to(3000);
  EXPECT_GE(table->Statistics().bytes, 3000 * payload);
  EXPECT_LT(table->Statistics().bytes, 3000 * payload * 2 + (256 << 10));
  grow_to(1000000);
  EXPECT_GE(table->Statistics().bytes, 1000000 * (payload + 16));
  EXPECT_LT(table->Statistics().bytes, 1000000 * (payload + 24) * 1.2);
  table->Clear();
  EXPECT_LT(table->Statistics().bytes, 256 << 10);
}

}  // namespace
}  // namespace tandem::ps
