// SPDX-License-Identifier: Apache-2.0
// Compares tables whose rows are rounded, admitted and evicted with a simple model that uses a map.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/optimizers/optimizer.h"
#include "ps/policies/admission.h"
#include "ps/policies/eviction.h"
#include "ps/policies/initializer.h"
#include "ps/shard_map.h"
#include "ps/storage/row_codec.h"
#include "ps/storage/table_storage.h"
#include "ps/table.h"
#include "tests/ps/storage/stored_rows.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using testing::AllStoredRows;
using testing::StoredRow;
using testing::StoredRows;

// The model: a simple table with policies.
class PolicyModel {
 public:
  PolicyModel(const v1::TableConfig& config, uint32_t num_buckets, uint64_t budget_rows)
      : config_(config),
        dim_(config.dim()),
        num_buckets_(num_buckets),
        quota_(budget_rows / num_buckets),
        optimizer_(*MakeOptimizer(config.optimizer())),
        initializer_(*MakeInitializer(config.initializer())),
        admission_(*MakeAdmission(config.admission())),
        eviction_(*MakeEviction(config.eviction())),
        counters_(num_buckets, std::vector<uint8_t>(admission_->counter_bytes(num_buckets))) {}

  std::vector<float> Read(uint64_t id, bool create) {
    const auto found = rows_.find(id);
    if (found != rows_.end()) return {found->second.floats.begin(), found->second.floats.begin() + dim_};
    StoredRow row = NewRow(id, clock_);
    std::vector<float> values(row.floats.begin(), row.floats.begin() + dim_);
    if (create && admission_->at_pull() &&
        (quota_ == 0 || BucketRows(BucketOf(id, num_buckets_)) < 2 * quota_)) {
      rows_.emplace(id, std::move(row));
    }
    return values;
  }

  // Without `occurrences`, each entry is one.
  uint64_t Apply(const std::vector<uint64_t>& ids, const std::vector<float>& gradients,
                 const std::vector<uint32_t>& occurrences = {}) {
    ++clock_;
    if (!admission_->at_pull()) {
      for (const uint64_t id : ids) {
        if (rows_.count(id) > 0) continue;
        std::vector<uint8_t>& counters = counters_[BucketOf(id, num_buckets_)];
        if (admission_->Admit({config_.seed(), id, clock_}, absl::MakeSpan(counters))) {
          rows_.emplace(id, NewRow(id, clock_ - 1));
        }
      }
    }
    uint64_t missing = 0;
    std::map<uint64_t, std::vector<float>> sums;
    std::map<uint64_t, uint64_t> occurred;
    std::set<uint32_t> touched;
    for (size_t i = 0; i < ids.size(); ++i) {
      touched.insert(BucketOf(ids[i], num_buckets_));
      if (rows_.count(ids[i]) == 0) {
        ++missing;
        continue;
      }
      occurred[ids[i]] += occurrences.empty() ? 1 : occurrences[i];
      const float* gradient = gradients.data() + i * dim_;
      const auto [it, is_new] = sums.emplace(ids[i], std::vector<float>(gradient, gradient + dim_));
      for (size_t d = 0; d < dim_ && !is_new; ++d) it->second[d] += gradient[d];
    }
    for (const auto& [id, sum] : sums) {
      StoredRow& row = rows_[id];
      const RowUpdate update = {row.floats.data(), row.floats.data() + dim_, sum.data()};
      optimizer_->Update({&update, 1}, dim_, optimizer_->WarmUp(clock_));
      const uint64_t key = Mix64(Mix64(config_.seed(), id), clock_);
      Round(&row, config_.stochastic_rounding() ? &key : nullptr);
      if (eviction_ != nullptr && eviction_->needs_count()) {
        const auto most = uint64_t{std::numeric_limits<uint32_t>::max()};
        row.count = eviction_->Counted(row.count, clock_ - row.version,
                                       static_cast<uint32_t>(std::min(occurred[id], most)));
      }
      row.version = static_cast<uint32_t>(clock_);
    }
    if (quota_ > 0) {
      for (const uint32_t bucket : touched) {
        if (BucketRows(bucket) > quota_) Evict(bucket);
      }
    }
    if (eviction_ != nullptr && eviction_->sweeps()) {
      for (auto row = rows_.begin(); row != rows_.end();) {
        const bool expired = BucketOf(row->first, num_buckets_) == clock_ % num_buckets_ &&
                             eviction_->Expired(StatsOf(row->second));
        row = expired ? rows_.erase(row) : std::next(row);
      }
    }
    return missing;
  }

  StoredRows& rows() { return rows_; }
  void Clear() {
    rows_.clear();
    for (auto& counters : counters_) std::fill(counters.begin(), counters.end(), 0);
  }

 private:
  void Round(StoredRow* row, const uint64_t* key) const {
    std::vector<char> stored(4 * dim_);
    char* const to = stored.data();
    const char* const from = stored.data();
    StoreRows(RowTypeOf(config_), absl::MakeConstSpan(&to, 1), dim_, row->floats.data(), key);
    LoadRows(RowTypeOf(config_), absl::MakeConstSpan(&from, 1), dim_, row->floats.data());
  }
  StoredRow NewRow(uint64_t id, uint64_t clock) const {
    StoredRow row;
    row.floats.resize(dim_ + optimizer_->state_floats(dim_));
    row.version = static_cast<uint32_t>(clock);
    initializer_->Fill(config_.seed(), id, row.floats.data(), dim_);
    Round(&row, nullptr);
    optimizer_->InitState(row.floats.data(), row.floats.data() + dim_, dim_);
    return row;
  }
  RowStats StatsOf(const StoredRow& row) const {
    RowStats facts{.age = clock_ - row.version, .count = row.count};
    for (size_t i = 0; i < dim_ && eviction_->needs_norm(); ++i) {
      facts.squared_norm += static_cast<double>(row.floats[i]) * row.floats[i];
    }
    return facts;
  }
  uint64_t BucketRows(uint32_t bucket) const {
    return std::count_if(rows_.begin(), rows_.end(),
                         [&](const auto& row) { return BucketOf(row.first, num_buckets_) == bucket; });
  }
  void Evict(uint32_t bucket) {
    std::vector<std::pair<double, uint64_t>> priorities;
    for (const auto& [id, row] : rows_) {
      if (BucketOf(id, num_buckets_) == bucket)
        priorities.emplace_back(eviction_->Priority(StatsOf(row)), id);
    }
    std::sort(priorities.begin(), priorities.end());
    const size_t keep = quota_ - quota_ / 16;
    for (size_t i = 0; i + keep < priorities.size(); ++i) rows_.erase(priorities[i].second);
  }

  const v1::TableConfig config_;
  const size_t dim_;
  const uint32_t num_buckets_;
  const uint64_t quota_;
  const std::unique_ptr<Optimizer> optimizer_;
  const std::unique_ptr<Initializer> initializer_;
  const std::unique_ptr<Admission> admission_;
  const std::unique_ptr<Eviction> eviction_;
  std::vector<std::vector<uint8_t>> counters_;
  uint64_t clock_ = 0;
  StoredRows rows_;
};

// Copies a table as a checkpoint does.
std::unique_ptr<TableStorage> Reloaded(const v1::TableConfig& config, uint32_t num_buckets,
                                       TableStorage* from) {
  auto to = TableStorage::Create(config, num_buckets, [](uint32_t) { return true; });
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

struct PolicyCase {
  std::string name;
  uint32_t dim;
  uint32_t num_buckets;
  v1::OptimizerConfig optimizer;
  v1::TableConfig::RowType row_type = v1::TableConfig::F32;
  bool stochastic = false;
  v1::AdmissionConfig admission;
  v1::EvictionConfig eviction;
  uint64_t byte_budget = 0;

  v1::TableConfig Table() const {
    v1::TableConfig config = EmbeddingTable("t", dim, optimizer, Uniform(-1, 1));
    config.set_seed(11);
    config.set_row_type(row_type);
    config.set_stochastic_rounding(stochastic);
    *config.mutable_admission() = admission;
    *config.mutable_eviction() = eviction;
    config.set_byte_budget(byte_budget);
    return config;
  }
};

std::vector<PolicyCase> PolicyCases() {
  constexpr auto kF16 = v1::TableConfig::F16;
  constexpr auto kBf16 = v1::TableConfig::BF16;
  constexpr auto kF32 = v1::TableConfig::F32;
  v1::OptimizerConfig modified = Adagrad(0.1f);
  modified.set_weight_decay(0.1f);
  modified.set_clip_row_norm(0.5f);
  modified.set_warmup_updates(50);
  return {{"F16Adagrad", 16, 16, Adagrad(0.1f), kF16},
          {"Bf16StochasticAdam", 17, 4, Adam(0.1f), kBf16, true},
          {"F16StochasticOddDim", 3, 1, RowwiseAdagrad(0.1f), kF16, true},
          {"ModifiedOptimizer", 9, 16, modified, kBf16},
          {"Probability", 8, 16, Adagrad(0.1f), kF32, false, AdmitWithProbability(0.4f)},
          {"CountRoomy", 8, 16, Adagrad(0.1f), kF32, false, AdmitAfter(3, 100000)},
          {"CountCrowdedOneBucket", 8, 1, Sgd(0.1f), kBf16, true, AdmitAfter(2, 200)},
          {"Lru", 16, 16, Adagrad(0.1f), kF32, false, {}, EvictLru(), 256 << 10},
          {"LfuF16", 16, 4, Adagrad(0.1f), kF16, true, {}, EvictLfu(), 96 << 10},
          {"L2Norm", 8, 8, Adagrad(0.1f), kF32, false, {}, EvictL2Norm(), 128 << 10},
          {"Ttl", 8, 4, Adagrad(0.1f), kF32, false, {}, EvictAfter(7)},
          {"TtlAndBudgetAndCount", 8, 4, Adam(0.1f), kBf16, false, AdmitAfter(2, 4000), EvictAfter(40),
           128 << 10},
          {"LfuProbabilityOneBucket", 5, 1, Ftrl(0.1f), kF32, false, AdmitWithProbability(0.5f), EvictLfu(),
           64 << 10}};
}

class PoliciesModelTest : public ::testing::TestWithParam<PolicyCase> {};
INSTANTIATE_TEST_SUITE_P(Policies, PoliciesModelTest, ::testing::ValuesIn(PolicyCases()),
                         [](const auto& info) { return info.param.name; });

std::vector<uint64_t> RandomIds(CounterRandom* random, uint64_t range, size_t most) {
  std::vector<uint64_t> ids(random->Below(most));
  for (uint64_t& id : ids) {
    id = random->Below(3) == 0 ? random->Below(8) : random->Below(range) * 0x100000001ull;
  }
  return ids;
}

TEST_P(PoliciesModelTest, BehavesLikeAMapOverALongRandomSequenceOfOperationsAndReloads) {
  const v1::TableConfig config = GetParam().Table();
  ASSERT_TRUE(ValidateTableConfig(config).ok()) << ValidateTableConfig(config);
  const uint32_t num_buckets = GetParam().num_buckets;
  const size_t dim = config.dim();
  std::unique_ptr<TableStorage> table =
      TableStorage::Create(config, num_buckets, [](uint32_t) { return true; });
  PolicyModel model(config, num_buckets, table->Statistics().budget_rows);
  CounterRandom random(/*seed=*/3, dim);
  for (int operation = 0; operation < 100; ++operation) {
    const std::vector<uint64_t> ids = RandomIds(&random, 4000, operation % 3 == 0 ? 1500 : 60);
    const uint64_t choice = random.Below(20);
    if (choice < 9) {
      const bool create = choice < 7;
      std::vector<float> got(ids.size() * dim), want;
      TANDEM_EXPECT_OK(table->Gather(ids, create, got.data()));
      for (const uint64_t id : ids) {
        const std::vector<float> row = model.Read(id, create);
        want.insert(want.end(), row.begin(), row.end());
      }
      ASSERT_EQ(got, want) << "operation " << operation;
    } else if (choice < 18) {
      std::vector<float> gradients(ids.size() * dim);
      for (float& g : gradients) g = random.Uniform() - 0.5f;
      std::vector<uint32_t> occurrences(choice < 13 ? 0 : ids.size());
      for (uint32_t& number : occurrences) {
        number = random.Below(50) == 0 ? ~uint32_t{0} : static_cast<uint32_t>(1 + random.Below(9));
      }
      const uint32_t* const given = occurrences.empty() ? nullptr : occurrences.data();
      ASSERT_EQ(*table->Apply(ids, gradients.data(), {.occurrences = given}),
                model.Apply(ids, gradients, occurrences))
          << operation;
    } else if (choice == 18) {
      table = Reloaded(config, num_buckets, table.get());
    } else if (operation % 4 == 0) {
      table->Clear();
      model.Clear();
    }
    ASSERT_EQ(table->rows(), model.rows().size()) << "operation " << operation;
    if (operation % 20 == 19) {
      ASSERT_EQ(AllStoredRows(table.get(), num_buckets), model.rows());
    }
  }
  EXPECT_EQ(AllStoredRows(table.get(), num_buckets), model.rows());
}

TEST_P(PoliciesModelTest, DecisionsAndValuesDoNotDependOnHowBucketsAreSpreadOverServers) {
  const v1::TableConfig config = GetParam().Table();
  StoredRows first;
  for (const uint32_t servers : {1, 2, 4}) {
    const ShardMap map = ShardMap::Even(servers, 64);
    std::vector<std::unique_ptr<TableStorage>> tables;
    for (uint32_t s = 0; s < servers; ++s) {
      tables.push_back(
          TableStorage::Create(config, 64, [&](uint32_t b) { return map.OwnerOfBucket(b) == s; }));
    }
    CounterRandom random(/*seed=*/4, 0);
    for (int step = 0; step < 30; ++step) {
      const std::vector<uint64_t> ids = RandomIds(&random, 4000, 300);
      for (uint32_t s = 0; s < servers; ++s) {
        std::vector<uint64_t> mine;
        std::vector<float> gradients;
        for (const uint64_t id : ids) {
          if (map.OwnerOf(id) != s) continue;
          mine.push_back(id);
          for (size_t d = 0; d < config.dim(); ++d)
            gradients.push_back(0.01f * static_cast<float>(id % 17) - 0.05f);
        }
        std::vector<float> rows(mine.size() * config.dim());
        // Workers pull in any order.
        std::vector<uint64_t> pulled = mine;
        if (servers == 2) std::reverse(pulled.begin(), pulled.end());
        TANDEM_EXPECT_OK(tables[s]->Gather(pulled, /*create=*/true, rows.data()));
        TANDEM_EXPECT_OK(tables[s]->Apply(mine, gradients.data(), {}));
      }
    }
    StoredRows all;
    for (auto& table : tables) all.merge(AllStoredRows(table.get(), 64));
    if (servers == 1) first = all;
    EXPECT_EQ(all, first) << servers << " servers";
  }
  EXPECT_FALSE(first.empty());
}

TEST(ByteBudgetTest, IsKeptAndRowsThatLeftReadAsTheyBegan) {
  v1::TableConfig config = EmbeddingTable("t", 16, Adagrad(0.1f), Uniform(-1, 1));
  *config.mutable_eviction() = EvictLru();
  config.set_byte_budget(8 << 20);
  const auto table = TableStorage::Create(config, 256, [](uint32_t) { return true; });
  std::vector<float> initial(16), rows(1000 * 16);
  TANDEM_EXPECT_OK(table->Gather({0}, /*create=*/false, initial.data()));
  for (uint64_t first = 0; first < 100000; first += 1000) {
    std::vector<uint64_t> ids;
    for (uint64_t id = first; id < first + 1000; ++id) ids.push_back(id);
    TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/true, rows.data()));
    EXPECT_EQ(*table->Apply(ids, rows.data(), {}), 0);
  }
  const StorageStatistics statistics = table->Statistics();
  EXPECT_LE(statistics.rows, statistics.budget_rows);
  EXPECT_GE(statistics.rows, statistics.budget_rows * 4 / 5);
  EXPECT_EQ(statistics.admitted_rows, 100000);
  EXPECT_EQ(statistics.evicted_rows, 100000 - statistics.rows);
  EXPECT_LE(static_cast<double>(statistics.bytes), 1.15 * (8 << 20));  // the budget, and one step's new rows
  TANDEM_EXPECT_OK(table->Gather({0}, /*create=*/false, rows.data()));
  EXPECT_TRUE(std::equal(initial.begin(), initial.end(), rows.begin()));
  const std::vector<float> gradient(16, 1.0f);
  EXPECT_EQ(*table->Apply({0}, gradient.data(), {}), 1);  // a gradient for it is dropped
}

// Yesterday's ids are pushed more often than today's will ever be.
TEST(LfuTest, RowsThatWereUsedOftenLongAgoLeaveForThoseThatAreUsedNow) {
  v1::TableConfig config = EmbeddingTable("t", 8, Sgd(0.1f), Zeros());
  *config.mutable_eviction() = EvictLfu(/*half_life=*/50);
  config.set_byte_budget(64 << 10);
  const auto table = TableStorage::Create(config, 64, [](uint32_t) { return true; });
  const auto use = [&](uint64_t first, uint64_t rows, int updates) {
    std::vector<uint64_t> ids(rows);
    for (uint64_t i = 0; i < rows; ++i) ids[i] = first + i;
    std::vector<float> values(rows * 8);
    for (int update = 0; update < updates; ++update) {
      TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/true, values.data()));
      TANDEM_ASSERT_OK(table->Apply(ids, values.data(), {}));
    }
  };
  const auto kept = [&](uint64_t first, uint64_t rows) {
    uint64_t found = 0;
    for (const auto& [id, row] : AllStoredRows(table.get(), 64)) found += id >= first && id < first + rows;
    return found;
  };
  constexpr uint64_t kRows = 200, kToday = 1'000'000;
  use(0, kRows, 1000);
  ASSERT_GT(table->Statistics().budget_rows, 2 * kRows);
  EXPECT_GE(kept(0, kRows), kRows * 9 / 10);
  use(kToday, 3 * table->Statistics().budget_rows, 3);  // a scan: each row is used now and then
  EXPECT_GE(kept(0, kRows), kRows * 9 / 10);
  use(kToday, 3 * table->Statistics().budget_rows, 500);
  EXPECT_EQ(kept(0, kRows), 0);
}

// Each bucket has one id that occurs 20 times in a single update, and others of ten updates each.
TEST(LfuTest, AnIdThatOccursOftenInOneUpdateOutlivesIdsOfMoreUpdates) {
  v1::TableConfig config = EmbeddingTable("t", 8, Sgd(0.1f), Zeros());
  *config.mutable_eviction() = EvictLfu();
  config.set_byte_budget(64 << 10);
  constexpr uint32_t kBuckets = 8;
  const auto table = TableStorage::Create(config, kBuckets, [](uint32_t) { return true; });
  const auto update = [&](const std::vector<uint64_t>& ids, const std::vector<uint32_t>& occurrences) {
    std::vector<float> values(ids.size() * 8);
    TANDEM_ASSERT_OK(table->Gather(ids, /*create=*/true, values.data()));
    TANDEM_ASSERT_OK(table->Apply(ids, values.data(),
                                  {.occurrences = occurrences.empty() ? nullptr : occurrences.data()}));
  };
  std::map<uint32_t, uint64_t> hot;  // by bucket
  for (uint64_t id = 0; hot.size() < kBuckets; ++id) hot.emplace(BucketOf(id, kBuckets), id);
  std::vector<uint64_t> repeated, once;
  for (const auto& [bucket, id] : hot) {
    if (bucket % 2 == 0) {
      repeated.insert(repeated.end(), 20, id);
    } else {
      once.push_back(id);
    }
  }
  update(repeated, {});
  update(once, std::vector<uint32_t>(once.size(), 20));
  std::vector<uint64_t> others(2 * table->Statistics().budget_rows);
  for (size_t i = 0; i < others.size(); ++i) others[i] = 1'000'000 + i;
  for (int i = 0; i < 10; ++i) update(others, {});
  ASSERT_GT(table->Statistics().evicted_rows, 0);
  const StoredRows rows = AllStoredRows(table.get(), kBuckets);
  for (const auto& [bucket, id] : hot) EXPECT_EQ(rows.count(id), 1u) << bucket;
}

TEST(TtlTest, ATableThatIsNoLongerUsedGivesItsMemoryBack) {
  v1::TableConfig config = EmbeddingTable("t", 16, Adagrad(0.1f), Uniform(-1, 1));
  *config.mutable_eviction() = EvictAfter(100);
  const auto table = TableStorage::Create(config, 256, [](uint32_t) { return true; });
  std::vector<uint64_t> ids(100000);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::vector<float> rows(ids.size() * 16);
  TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/true, rows.data()));
  const uint64_t full = table->Statistics().bytes;
  for (int update = 0; update < 400; ++update) TANDEM_EXPECT_OK(table->Apply({}, nullptr, {}));
  EXPECT_EQ(table->rows(), 0);
  EXPECT_LT(table->Statistics().bytes, full / 4);
}

TEST(RefusedIdsTest, ReadAsTheirInitialValueAndTheirGradientsAreCounted) {
  v1::TableConfig config = EmbeddingTable("t", 2, Sgd(1.0f), Constant(3));
  *config.mutable_admission() = AdmitAfter(3, 100000);
  const auto table = TableStorage::Create(config, 256, [](uint32_t) { return true; });
  const float gradient[] = {1, 1};
  float row[2];
  for (int push = 1; push <= 4; ++push) {
    TANDEM_EXPECT_OK(table->Gather({7}, /*create=*/true, row));
    EXPECT_EQ(row[0], push <= 3 ? 3.0f : 2.0f);
    EXPECT_EQ(*table->Apply({7}, gradient, {}), push < 3 ? 1 : 0);
  }
  const StorageStatistics statistics = table->Statistics();
  EXPECT_EQ(statistics.rows, 1);
  EXPECT_EQ(statistics.admitted_rows, 1);
  EXPECT_EQ(statistics.refused_rows, 2);
}

TEST(RowFactorsTest, MultiplyTheLearningRateOfTheirRows) {
  const auto table =
      TableStorage::Create(EmbeddingTable("t", 1, Sgd(1.0f), Zeros()), 256, [](uint32_t) { return true; });
  std::vector<float> rows(3);
  TANDEM_EXPECT_OK(table->Gather({1, 2, 3}, /*create=*/true, rows.data()));
  const std::vector<float> gradients = {1, 1, 1, 1};
  const std::vector<float> factors = {1, 0.5f, 2, 4};
  TANDEM_EXPECT_OK(table->Apply({1, 2, 3, 1}, gradients.data(),
                                {.learning_rate_factor = 10, .row_factors = factors.data()}));
  TANDEM_EXPECT_OK(table->Gather({1, 2, 3}, /*create=*/false, rows.data()));
  EXPECT_THAT(rows, ::testing::ElementsAre(-20, -5, -20));
}

// The invariant: an update changes all numbers of a row alike, so every reader must find them equal, even in
// tables whose rows come and go all the time.
TEST(PoliciesThreadsTest, NoRowIsEverSeenHalfWrittenWhileOthersAreAdmittedAndEvicted) {
  for (PolicyCase c : PolicyCases()) {
    if (c.byte_budget == 0 && c.eviction.kind().empty()) continue;
    SCOPED_TRACE(c.name);
    v1::TableConfig config = c.Table();
    *config.mutable_initializer() = Constant(1.0f);
    *config.mutable_optimizer() = Sgd(0.25f);
    config.set_stochastic_rounding(false);
    const auto table = TableStorage::Create(config, 64, [](uint32_t) { return true; });
    std::atomic<uint64_t> torn{0};
    const auto run = [&](uint64_t seed) {
      CounterRandom random(seed, 1);
      for (int call = 0; call < 30; ++call) {
        const std::vector<uint64_t> ids = RandomIds(&random, 3000, 300);
        std::vector<float> rows(ids.size() * c.dim);
        TANDEM_EXPECT_OK(table->Gather(ids, /*create=*/seed % 2 == 0, rows.data()));
        for (size_t i = 0; i < ids.size(); ++i) {
          const float* const row = &rows[i * c.dim];
          torn += !std::all_of(row, row + c.dim, [&](float v) { return v == row[0]; });
        }
        std::fill(rows.begin(), rows.end(), 1.0f);
        TANDEM_EXPECT_OK(table->Apply(ids, rows.data(), {}));
        TANDEM_EXPECT_OK(table->VisitBucket(
            static_cast<uint32_t>(random.Below(64)), [&](uint64_t, const float* row, const RowHistory&) {
              torn += !std::all_of(row, row + c.dim, [&](float v) { return v == row[0]; });
            }));
      }
    };
    std::vector<std::thread> threads;
    for (uint64_t t = 0; t < 4; ++t) threads.emplace_back(run, t);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(torn, 0);
    EXPECT_EQ(table->rows(), AllStoredRows(table.get(), 64).size());
    const StorageStatistics statistics = table->Statistics();
    EXPECT_EQ(statistics.rows, statistics.admitted_rows - statistics.evicted_rows);
  }
}

}  // namespace
}  // namespace tandem::ps
