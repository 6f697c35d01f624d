// SPDX-License-Identifier: Apache-2.0
#include "worker/step/lookup.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "base/random.h"
#include "base/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/table.h"
#include "tests/testing/status_matchers.h"

namespace tandem::worker {
namespace {

constexpr int kDim = 3;

// Row values by (table, id), as a parameter server would store them.
float RowValue(const std::string& table, uint64_t id, int d) {
  return static_cast<float>(Mix64(HashBytes(table, id), d) % 1000) / 500.0f - 1.0f;
}

// Handles Lookup's pulls and pushes as the servers do, pooling included.
void Respond(const std::vector<LookupTable>& tables, std::vector<ps::PullPart> parts) {
  ASSERT_EQ(parts.size(), tables.size());
  for (size_t t = 0; t < parts.size(); ++t) {
    const int dim = tables[t].dim;
    const ps::PullPart& part = parts[t];
    if (part.pooling == ps::v1::NONE) {
      for (size_t i = 0; i < part.ids.size(); ++i) {
        for (int d = 0; d < dim; ++d) part.rows[i * dim + d] = RowValue(part.table, part.ids[i], d);
      }
      continue;
    }
    for (size_t bag = 0; bag + 1 < part.offsets.size(); ++bag) {
      const float n = static_cast<float>(part.offsets[bag + 1] - part.offsets[bag]);
      for (int d = 0; d < dim; ++d) {
        float sum = 0;
        for (uint32_t i = part.offsets[bag]; i < part.offsets[bag + 1]; ++i) {
          sum += RowValue(part.table, part.ids[i], d);
        }
        part.rows[bag * dim + d] = part.pooling == ps::v1::MEAN && n > 0 ? sum / n : sum;
      }
    }
  }
}

// Three features: single-valued, multi-valued with empty bags, and one that shares its ids with the first.
Batch RandomBatch(uint64_t seed, size_t size, bool weights) {
  CounterRandom random(seed, 0);
  Batch batch;
  batch.size = size;
  batch.labels.assign(size, 0.0f);
  batch.sparse.resize(3);
  for (const int f : {0, 2}) {
    for (size_t b = 0; b < size; ++b) batch.sparse[f].ids.push_back(100 + random.Below(7));
  }
  SparseColumn& multi = batch.sparse[1];
  multi.offsets.push_back(0);
  for (size_t b = 0; b < size; ++b) {
    for (uint64_t n = random.Below(4); n > 0; --n) {
      multi.ids.push_back(200 + random.Below(5));
      if (weights) multi.weights.push_back(random.Uniform());
    }
    multi.offsets.push_back(static_cast<uint32_t>(multi.ids.size()));
  }
  return batch;
}

// The servers' rows, as Respond has them.
class ModelRows : public ps::RowHome {
 public:
  explicit ModelRows(const LookupPlan& plan) : plan_(plan) {}
  absl::StatusOr<std::vector<ps::HotRow>> FindHot(const std::string&, double, uint64_t) override {
    return std::vector<ps::HotRow>();
  }
  absl::StatusOr<double> Delay(const std::string&) override { return 100.0; }
  absl::StatusOr<ps::MovedRows> Read(const std::string& table, absl::Span<const uint64_t> ids) override {
    ps::MovedRows rows{.ids = {ids.begin(), ids.end()}};
    const auto found =
        absl::c_find_if(plan_.tables, [&](const LookupTable& candidate) { return candidate.name == table; });
    for (const uint64_t id : ids) {
      for (int d = 0; d < found->dim; ++d) rows.weights.push_back(RowValue(table, id, d));
    }
    return rows;
  }
  absl::Status Write(const std::map<std::string, ps::MovedRows>&) override { return absl::OkStatus(); }
  absl::Status Flush(const std::string&) override { return absl::OkStatus(); }
  absl::Status SetMode(const std::string&, const ps::v1::UpdateMode&) override { return absl::OkStatus(); }

 private:
  const LookupPlan plan_;
};

// Replicates the rows with even ids.
std::unique_ptr<ps::ReplicatedTables> ReplicateSome(const LookupPlan& plan) {
  static std::vector<std::unique_ptr<ModelRows>> homes;
  homes.push_back(std::make_unique<ModelRows>(plan));
  std::vector<ps::ReplicatedTableOptions> options;
  for (const LookupTable& table : plan.tables) {
    options.push_back({.config = ps::EmbeddingTable(table.name, static_cast<uint32_t>(table.dim), ps::Sgd(1),
                                                    ps::Zeros())});
  }
  auto replicas = ps::ReplicatedTables::Create(std::move(options), {}, homes.back().get());
  TANDEM_CHECK_MSG(replicas.ok(), replicas.status().ToString());
  const std::vector<uint64_t> even = {100, 102, 104, 106, 200, 202, 204};
  const std::vector<std::vector<uint64_t>> ids(plan.tables.size(), even);
  const absl::Status restored = (*replicas)->Restore(ids);
  TANDEM_CHECK_MSG(restored.ok(), restored.ToString());
  return *std::move(replicas);
}

// Moves the gradients of replicated rows to `gradients`.
void TakeGradients(const LookupPlan& plan, ps::ReplicatedTables* replicas,
                   std::map<std::pair<std::string, uint64_t>, std::vector<double>>* gradients) {
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    ps::ReplicatedRows* const rows = replicas->table(t);
    std::vector<float> packed;
    rows->TakeTouched(&packed);
    for (size_t at = 0; at < packed.size(); at += rows->packed_floats()) {
      uint32_t slot;
      std::memcpy(&slot, packed.data() + at, sizeof(slot));
      std::vector<double>& gradient = (*gradients)[{plan.tables[t].name, rows->ids()[slot]}];
      EXPECT_TRUE(gradient.empty());
      gradient.assign(packed.begin() + static_cast<ptrdiff_t>(at) + 1,
                      packed.begin() + static_cast<ptrdiff_t>(at + rows->packed_floats()));
    }
  }
}

LookupPlan MakePlan() {
  LookupPlan plan;
  plan.num_features = 3;
  plan.dim = kDim;
  plan.tables = {{.name = "item", .dim = kDim, .features = {1}},
                 {.name = "embedding", .dim = kDim, .features = {0, 2}},
                 {.name = "wide", .dim = 1, .wide = true, .features = {0, 1, 2}}};
  plan.shared_features = {{0, 2}};
  return plan;
}

struct Case {
  bool mean, square_sums, server_pooling, weights;
  bool replicated = false;  // some rows
};

class LookupTest : public ::testing::TestWithParam<Case> {};

// The expected results: every id by itself, without sharing or deduplication.
TEST_P(LookupTest, GathersAndScattersWhatARowByRowLoopWould) {
  const Case& c = GetParam();
  LookupPlan plan = MakePlan();
  plan.mean = c.mean;
  plan.square_sums = c.square_sums;
  plan.server_pooling = c.server_pooling;
  plan.tables[1].counts_occurrences = plan.tables[2].counts_occurrences = true;
  const std::unique_ptr<ps::ReplicatedTables> replicas = c.replicated ? ReplicateSome(plan) : nullptr;
  Lookup lookup(&plan, replicas.get());
  for (const size_t size : {5, 1, 33, 0, 8}) {  // one object handles batches of any size
    const Batch batch = RandomBatch(size, size, c.weights);
    TANDEM_ASSERT_OK(lookup.Prepare(&batch));
    Respond(plan.tables, lookup.PullParts());
    ModelInput input;
    lookup.Gather(&input);
    const InputGradients d = lookup.GradientBuffers();
    CounterRandom random(77, size);
    for (size_t i = 0; i < size * 3 * kDim; ++i) d.embeddings[i] = random.Uniform() - 0.5f;
    for (size_t i = 0; i < size * 3; ++i) d.wide[i] = random.Uniform() - 0.5f;
    for (size_t i = 0; c.square_sums && i < size * kDim; ++i) d.square_sums[i] = random.Uniform() - 0.5f;

    std::map<std::pair<std::string, uint64_t>, std::vector<double>> expected;  // gradients
    std::map<std::pair<std::string, uint64_t>, uint32_t> occurred;
    for (size_t b = 0; b < size; ++b) {
      std::vector<double> squares(kDim, 0.0);
      for (int f = 0; f < 3; ++f) {
        const std::string table = f == 1 ? "item" : "embedding";
        const SparseColumn& column = batch.sparse[f];
        const size_t begin = column.offsets.empty() ? b : column.offsets[b];
        const size_t end = column.offsets.empty() ? b + 1 : column.offsets[b + 1];
        std::vector<double> sum(kDim, 0.0);
        double wide = 0;
        for (size_t i = begin; i < end; ++i) {
          double weight = column.weights.empty() ? 1.0 : column.weights[i];
          if (c.mean) weight /= static_cast<double>(end - begin);
          std::vector<double>& g = expected[{table, column.ids[i]}];
          g.resize(kDim);
          for (int k = 0; k < kDim; ++k) {
            const double value = RowValue(table, column.ids[i], k);
            sum[k] += weight * value;
            squares[k] += weight * value * weight * value;
            g[k] += weight * d.embeddings[(b * 3 + f) * kDim + k];
            if (c.square_sums) g[k] += 2 * weight * weight * value * d.square_sums[b * kDim + k];
          }
          wide += weight * RowValue("wide", column.ids[i], 0);
          std::vector<double>& gw = expected[{"wide", column.ids[i]}];
          gw.resize(1);
          gw[0] += weight * d.wide[b * 3 + f];
          ++occurred[{table, column.ids[i]}];
          ++occurred[{"wide", column.ids[i]}];
        }
        for (int k = 0; k < kDim; ++k) EXPECT_NEAR(input.embeddings[(b * 3 + f) * kDim + k], sum[k], 1e-5);
        EXPECT_NEAR(input.wide[b * 3 + f], wide, 1e-5);
      }
      for (int k = 0; c.square_sums && k < kDim; ++k)
        EXPECT_NEAR(input.square_sums[b * kDim + k], squares[k], 1e-5);
    }

    std::map<std::pair<std::string, uint64_t>, std::vector<double>> actual;
    lookup.ScatterReplicated();
    if (c.replicated) TakeGradients(plan, replicas.get(), &actual);
    if (c.replicated && size > 4) {
      EXPECT_GT(actual.size(), 5u);
    }
    for (const ps::PushPart& part : lookup.Scatter()) {
      const int dim = part.table == "wide" ? 1 : kDim;
      const bool counted = part.table != "item" && !c.server_pooling;
      ASSERT_EQ(part.occurrences.size(), counted ? part.ids.size() : 0u) << part.table;
      for (size_t i = 0; i < part.occurrences.size(); ++i) {
        EXPECT_EQ(part.occurrences[i], (occurred[{part.table, part.ids[i]}])) << part.table << part.ids[i];
      }
      for (size_t bag = 0; part.pooling != ps::v1::NONE && bag + 1 < part.offsets.size(); ++bag) {
        const double n = part.offsets[bag + 1] - part.offsets[bag];
        for (uint32_t i = part.offsets[bag]; i < part.offsets[bag + 1]; ++i) {
          std::vector<double>& g = actual[{part.table, part.ids[i]}];
          g.resize(dim);
          for (int k = 0; k < dim; ++k) {
            g[k] += part.gradients[bag * dim + k] / (part.pooling == ps::v1::MEAN ? n : 1.0);
          }
        }
      }
      for (size_t i = 0; part.pooling == ps::v1::NONE && i < part.ids.size(); ++i) {
        std::vector<double>& g = actual[{part.table, part.ids[i]}];
        EXPECT_TRUE(g.empty()) << "id " << part.ids[i] << " stands twice in the push to " << part.table;
        g.resize(dim);
        for (int k = 0; k < dim; ++k) g[k] += part.gradients[i * dim + k];
      }
    }
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [key, gradient] : expected) {
      ASSERT_EQ(actual[key].size(), gradient.size()) << key.first << " " << key.second;
      for (size_t k = 0; k < gradient.size(); ++k)
        EXPECT_NEAR(actual[key][k], gradient[k], 1e-5) << key.first;
    }
  }
}

TEST(LookupTest, FeaturesAreReplicatedAsTheirPlacementSays) {
  LookupPlan plan = MakePlan();
  plan.tables.resize(2);
  plan.tables[0].placements = {ps::Placement::kReplicated};
  // Features that share ids are sharded if one of them is.
  plan.tables[1].placements = {ps::Placement::kAuto, ps::Placement::kSharded};
  const std::unique_ptr<ps::ReplicatedTables> replicas = ReplicateSome(plan);
  Lookup lookup(&plan, replicas.get());
  const Batch batch = RandomBatch(3, 50, false);
  TANDEM_ASSERT_OK(lookup.Prepare(&batch));
  const ServedCounts& served = lookup.served();
  EXPECT_EQ(served[0][0].replicated, 3u);  // 200, 202 and 204
  EXPECT_EQ(served[0][0].pulled, 2u);
  EXPECT_EQ(served[1][0].replicated, 0u);
  EXPECT_EQ(served[1][0].ids, 100u);
  EXPECT_EQ(lookup.unique_ids(), 2u + served[1][0].pulled);
  // The replicated ids of the first table stay, and its other ids join at the next change.
  for (const uint64_t id : {200, 202, 204}) {
    EXPECT_TRUE(replicas->IsWanted(0, replicas->table(0)->Find(id))) << id;
  }
  EXPECT_FALSE(replicas->IsWanted(0, replicas->table(0)->Find(100)));
  TANDEM_ASSERT_OK(replicas->Change(1).status());
  EXPECT_NE(replicas->table(0)->Find(201), ps::ReplicatedRows::kAbsent);
  EXPECT_NE(replicas->table(0)->Find(203), ps::ReplicatedRows::kAbsent);
}

INSTANTIATE_TEST_SUITE_P(All, LookupTest,
                         ::testing::Values(Case{false, false, false, false}, Case{true, false, false, false},
                                           Case{false, true, false, false}, Case{false, true, false, true},
                                           Case{true, true, false, true}, Case{false, false, true, false},
                                           Case{true, false, true, false},
                                           Case{false, false, false, false, true},
                                           Case{true, true, false, true, true}));

TEST(LookupTest, RefusesABatchWithAnotherNumberOfFeatures) {
  const LookupPlan plan = MakePlan();
  Lookup lookup(&plan);
  Batch batch;
  batch.sparse.resize(2);
  EXPECT_THAT(lookup.Prepare(&batch),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                ::testing::HasSubstr("2 sparse features, the job 3")));
}

}  // namespace
}  // namespace tandem::worker
